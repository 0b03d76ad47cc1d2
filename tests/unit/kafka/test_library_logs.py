"""Log lines of librdkafka that are read."""

from __future__ import annotations

import logging

from confluent_kafka import Producer, libversion

from txbridge.kafka.fenced_producer import CONTEXT, EndTxnWatch

#: A cluster that librdkafka simulates in this process.
MOCK_CLUSTER = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1}


def watch_of_nobody():
    return EndTxnWatch(logging.getLogger("txbridge.librdkafka"), forward_debug=False)


def log_lines(watch, *lines):
    for line in lines:
        watch.log(logging.DEBUG, "%s [%s] %s", "ADDPARTS", "rdkafka#producer-1", line)


def test_the_lines_that_no_simulated_cluster_causes_were_read_in_this_librdkafka():
    """A failed EndTxn and a fence: before a later one is locked, compare its rdkafka_txnmgr.c with endtxn_watch.py."""
    assert libversion()[0].startswith("2.16.")


def test_librdkafka_still_says_it_in_these_words():
    watch = watch_of_nobody()
    producer = Producer({**MOCK_CLUSTER, "transactional.id": "one", "debug": CONTEXT, "logger": watch})
    producer.init_transactions(30)
    for _ in range(3):
        producer.begin_transaction()
        # One partition only: a second one may be registered with the same request, or with another.
        producer.produce("real", b"value", partition=0)
        producer.commit_transaction(30)
        producer.poll(0)
    assert watch.take_registrations() == (3, 0)
    assert watch.take_registrations() == (0, 0)
    assert watch.trouble_of_commit() is None
    producer.close()


def test_a_request_that_came_before_the_last_markers_were_written_is_counted_once():
    watch = watch_of_nobody()
    log_lines(
        watch,
        "[thrd:main]: Marked real [0] as part of transaction: scheduling registration",
        "[thrd:main]: Marked op [0] as part of transaction: not scheduling registration",
        "[thrd:main]: TxnCoordinator/1: Registering partitions with transaction",
        # librdkafka reads only the first partition of such an answer.
        '[thrd:main]: TxnCoordinator/1: AddPartitionsToTxn response: partition "op": [0]: Broker: Producer attempted '
        "to update a transaction while another concurrent operation on the same transaction was ongoing",
        "[thrd:main]: TxnCoordinator/1: Registering partitions with transaction",
        "[thrd:main]: real [0] registered with transaction",
        "[thrd:main]: op [0] registered with transaction",
        "[thrd:main]: Not registering partitions: Operation not valid in state Ready",
    )
    assert watch.take_registrations() == (2, 1)


def test_another_answer_that_is_tried_again_is_not_too_soon():
    watch = watch_of_nobody()
    log_lines(
        watch,
        "[thrd:main]: TxnCoordinator/1: Registering partitions with transaction",
        '[thrd:main]: TxnCoordinator/1: AddPartitionsToTxn response: partition "op": [0]: Broker: Not coordinator',
    )
    assert watch.take_registrations() == (1, 0)


def test_a_new_kafka_transaction_does_not_forget_what_was_not_asked_for():
    watch = watch_of_nobody()
    log_lines(watch, "[thrd:main]: TxnCoordinator/1: Registering partitions with transaction")
    watch.forget_trouble()
    assert watch.take_registrations() == (1, 0)
