"""Store and forward with a real Kafka, worker, relay and PostgreSQL: orders are taken without Kafka, once, in order."""

from __future__ import annotations

import itertools
import signal
import time

import pytest
from txbridge_sqlalchemy import Outbox, SqlTransactionListener

from tests.support import sql_application
from tests.support.harness import Bridge, eventually
from tests.support.relays import add_rows, end_gently, make_outbox, relaying, require_exact, rows_left, wait_relayed
from tests.support.sql_application import order_ids, place
from txbridge import LocalTransactionState, Message, SendStatus, TransactionProducer
from txbridge.client.decide.decision_batcher import Ticket

GROUP = "shop"
COMMIT = LocalTransactionState.COMMIT_MESSAGE
SEND_OK, STORED = SendStatus.SEND_OK, SendStatus.STORED
#: While Kafka is known to be away, a call takes milliseconds; one that tries to prepare takes this time-out and more.
PREPARE_S = 2.0
#: Worker options with which no check comes before the test is over, and with which all come in time.
NO_CHECK = {"transaction_timeout": 120_000}
MANY_CHECKS = {"transaction_check_max": 100}


@pytest.fixture
def engine(url):
    made = make_outbox(url)
    sql_application.tables.create_all(made)
    yield made
    made.dispose()


def settings_of(bridge):
    # The consumer of checks must not keep an ended member for long.
    return {
        "bootstrap.servers": bridge.bootstrap_servers,
        "message.timeout.ms": int(PREPARE_S * 1_000),
        "session.timeout.ms": 6_000,
        "log_level": 0,
    }


def service(bridge, engine, function=place):
    listener = SqlTransactionListener(engine, function, outbox=Outbox())
    return TransactionProducer(GROUP, listener, settings_of(bridge), namespace=bridge.namespace)


def order(topic, number, keys=3):
    return Message(topic, b"%d" % number, b"%d" % (number % keys))


def lose_kafka(producer):
    """Let this producer alone take Kafka for away."""
    producer._lifetime.runtime.sends._is_connected = lambda: False


def test_p3_p14_orders_are_taken_while_kafka_stands_still(own_kafka, url, engine):
    """Its first call waits for Kafka, which stores that half message after all. The others are stored at once."""
    with Bridge(own_kafka.bootstrap_servers, "stands still") as bridge, relaying(bridge, url):
        bridge.worker(**MANY_CHECKS)
        topic, numbers = bridge.create_topic("orders"), itertools.count()
        with service(bridge, engine) as producer:

            def send():
                number = next(numbers)
                since = time.monotonic()
                result = producer.send_message_in_transaction(order(topic, number), number)
                assert result.local_transaction_state is COMMIT
                return result, time.monotonic() - since

            assert {send()[0].send_status for _ in range(10)} == {SEND_OK}
            own_kafka.pause()
            first, _ = send()
            assert (first.send_status, first.half_offset) == (STORED, -1)
            first.wait(0)
            others = [send() for _ in range(10)]
            assert {result.send_status for result, _ in others} == {STORED}
            assert sorted(took for _, took in others)[5] < PREPARE_S
            own_kafka.resume()
            # Not while a row waits: the orders of its key are stored behind it, and each prolongs that.
            eventually(lambda: not rows_left(engine) and [send()[0].send_status for _ in range(5)] == [SEND_OK] * 5, 60)
        count = next(numbers)
        wait_relayed(bridge, topic, count, timeout=60)
        assert order_ids(engine) == list(range(count))
        # The half message that Kafka had in its buffers has come to nothing.
        eventually(lambda: set(map(tuple, bridge.outcomes().values())) == {("commit",), ("rollback",)}, 120)
        require_exact(bridge, topic, count)
        assert rows_left(engine) == 0


def test_a_service_starts_and_takes_orders_without_kafka(own_kafka, url, engine):
    with Bridge(own_kafka.bootstrap_servers, "not there") as bridge:
        topic = bridge.create_topic("orders")
        own_kafka.kill()
        began = time.monotonic()
        with service(bridge, engine) as producer:
            assert not producer.is_connected
            first = producer.send_message_in_transaction(order(topic, 0), 0)
            # Later calls do not wait at all.
            later = producer.submit_message_in_transaction(order(topic, 1), 1).result(0)
            print(f"two orders after {time.monotonic() - began:.1f} s")
            assert [one.send_status for one in (first, later)] == [STORED, STORED]
            own_kafka.restart()
            bridge.worker(**MANY_CHECKS)
            eventually(lambda: producer.is_connected, 60)
            with relaying(bridge, url):
                assert producer.send_message_in_transaction(order(topic, 3), 2).send_status is STORED
                wait_relayed(bridge, topic, 3, timeout=60)
            assert producer.send_message_in_transaction(order(topic, 4), 3).send_status is SEND_OK
            bridge.wait_visible(topic, [b"0", b"1", b"3", b"4"], 60)
        assert set(bridge.visible(topic).values()) == {1}


def test_p14_a_relay_that_died_while_its_rows_are_there_is_not_passed(bridge, topic, url, engine):
    """Its rows are visible, and not deleted yet. A message that follows is stored behind them."""
    bridge.worker(**NO_CHECK)
    with service(bridge, engine) as producer:
        assert producer.send_message_in_transaction(order(topic, 0, 1), 0).send_status is SEND_OK
        add_rows(engine, topic, range(1, 11), keys=1)
        with relaying(bridge, url, fault="relay.confirming") as relay:
            assert relay.wait(120) == -signal.SIGKILL
        assert producer.send_message_in_transaction(order(topic, 11, 1), 11).send_status is STORED
        with relaying(bridge, url):
            wait_relayed(bridge, topic, 12)
            eventually(lambda: rows_left(engine) == 0, 30)
            assert producer.send_message_in_transaction(order(topic, 12, 1), 12).send_status is SEND_OK
            wait_relayed(bridge, topic, 13)
    require_exact(bridge, topic, 13)


def test_p14_messages_follow_the_rows_of_their_key_and_no_others(bridge, topic, url, engine):
    bridge.worker(**NO_CHECK)
    with service(bridge, engine) as producer:
        add_rows(engine, topic, range(3), keys=1)
        behind = producer.send_message_in_transaction(order(topic, 3, 1), 3)
        other = producer.send_message_in_transaction(Message(topic, b"4", b"other"), 4)
        assert (behind.send_status, other.send_status) == (STORED, SEND_OK)
        behind.wait(0)
        with relaying(bridge, url) as relay:
            wait_relayed(bridge, topic, 5, relay)
            end_gently(relay)
    require_exact(bridge, topic, 5)
    # The half message of the one that was stored is rolled back without a check.
    assert sorted(bridge.outcomes().values()) == [["commit"], ["rollback"]]


def test_p14_a_message_whose_end_was_lost_is_not_passed_by_a_row(bridge, topic, url, engine):
    """The END of the first message never came to Kafka. The row of the second one names it."""
    bridge.worker(**NO_CHECK)
    with service(bridge, engine) as producer:
        producer.start()
        sends = producer._lifetime.runtime.sends
        send = sends._ends.submit_command
        sends._ends.submit_command = lambda _partition, entry, _source, size: Ticket(entry, size)
        assert producer.send_message_in_transaction(order(topic, 0, 1), 0).send_status is SEND_OK
        sends._ends.submit_command = send
        lose_kafka(producer)
        assert producer.send_message_in_transaction(order(topic, 1, 1), 1).send_status is STORED
        with relaying(bridge, url) as relay:
            wait_relayed(bridge, topic, 2, relay)
    require_exact(bridge, topic, 2)


def test_p14_plain_rows_pass_while_no_worker_is_there_and_stored_ones_wait_for_it(bridge, topic, url, engine):
    with service(bridge, engine) as producer:
        producer.start()
        assert producer.send_message_in_transaction(order(topic, 0, 1), 0).send_status is SEND_OK
        lose_kafka(producer)
        for number in (1, 2):
            assert producer.send_message_in_transaction(order(topic, number, 1), number).send_status is STORED
        plain = bridge.create_topic("plain")
        add_rows(engine, plain, range(100), keys=1)
        with relaying(bridge, url) as relay:
            wait_relayed(bridge, plain, 100, relay)
            add_rows(engine, plain, range(100, 120), keys=1)
            wait_relayed(bridge, plain, 120, relay)
            assert (rows_left(engine), bridge.visible(topic)) == (2, {})
            bridge.worker(**NO_CHECK)
            wait_relayed(bridge, topic, 3, relay, 60)
            end_gently(relay)
    require_exact(bridge, topic, 3)
    require_exact(bridge, plain, 120)


@pytest.mark.long
def test_p3_p14_services_with_and_without_kafka_share_an_outbox(bridge, topic, url, engine):
    """One process has lost Kafka, the other has not. Their calls follow one another."""
    bridge.worker(**NO_CHECK)
    with service(bridge, engine) as with_kafka, service(bridge, engine) as without:
        without.start()
        lose_kafka(without)
        with relaying(bridge, url) as relay:
            statuses = []
            for number in range(200):
                producer = without if number % 5 == 0 else with_kafka
                result = producer.send_message_in_transaction(order(topic, number), number)
                # A call of another process counts from its END on.
                result.wait(60)
                statuses.append(result.send_status)
            wait_relayed(bridge, topic, 200, relay, timeout=60)
    assert statuses.count(STORED) >= 40
    assert statuses.count(SEND_OK) > 0
    require_exact(bridge, topic, 200)
