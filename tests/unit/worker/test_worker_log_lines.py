"""Log lines of a worker: those of the libraries below it, exceptions in their callbacks, and the form for people."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, KafkaException
from faust.types import TP

from txbridge.kafka.fenced_producer import EndTxnWatch, guarded, is_fenced
from txbridge.worker.faust.settings import TolerantConsumer, calm_down


class Handler(logging.Handler):
    """Keeps the names and levels of lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.name, record.levelname))


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_an_ordinary_fence_is_nothing_critical(caplog, code):
    # An earlier client in this process has switched librdkafka's lines off.
    caplog.set_level(logging.DEBUG, "txbridge.librdkafka")
    watch = EndTxnWatch(logging.getLogger("txbridge.librdkafka"), forward_debug=False)
    text = f"[thrd:main]: Fatal error: {KafkaError(code).str()}: transactional.id x"
    watch.log(logging.CRITICAL, "%s [%s] %s", "FATAL", "rdkafka#producer-1", text)
    assert [record.levelname for record in caplog.records] == ["INFO"]


#: Lines of librdkafka 2.16.0 about a fence: when partitions are added, when a transaction is ended, and for a record.
FENCE = [
    (logging.ERROR, "ADDPARTS", 'TxnCoordinator/1: Failed to add partition "t" [0] to transaction: Broker: {old}'),
    (
        logging.CRITICAL,
        "TXNERR",
        "Fatal transaction error: Failed to add partitions to transaction: Local: {new} (_FENCED)",
    ),
    (logging.CRITICAL, "FATAL", "Fatal error: Local: {new}: Failed to add partitions to transaction: Local: {new}"),
    (logging.CRITICAL, "TXNERR", "Fatal transaction error: Failed to end transaction: Local: {new} (_FENCED)"),
    (
        logging.CRITICAL,
        "TXNERR",
        "Fatal transaction error: ProduceRequest for t [0] with 1 message(s) failed: Broker: {old}",
    ),
]


def test_no_line_about_a_fence_is_an_error(caplog):
    caplog.set_level(logging.DEBUG, "txbridge.librdkafka")
    watch = EndTxnWatch(logging.getLogger("txbridge.librdkafka"), forward_debug=False)
    for level, facility, text in FENCE:
        line = text.format(
            new="This instance has been fenced by a newer instance",
            old="Producer attempted an operation with an old epoch",
        )
        watch.log(level, "%s [%s] %s", facility, "rdkafka#producer-1", f"[thrd:main]: {line}")
    assert [record.levelname for record in caplog.records] == ["INFO"] * len(FENCE)


def test_other_fatal_errors_stay_critical(caplog):
    watch = EndTxnWatch(logging.getLogger("txbridge.librdkafka"), forward_debug=False)
    text = "[thrd:main]: Fatal error: Broker: Transactional Id authorization failed: no right"
    watch.log(logging.CRITICAL, "%s [%s] %s", "FATAL", "rdkafka#producer-1", text)
    watch.log(logging.CRITICAL, "%s [%s] %s", "CRASH", "rdkafka#producer-1", "fenced by a newer instance")
    assert [record.levelname for record in caplog.records] == ["CRITICAL"] * 2


def test_what_faust_says_in_our_name_is_fausts():
    handler = Handler()
    calm_down([handler])
    for name in ("txbridge.worker.faust.settings", "txbridge.worker", "faust.app", "txbridge.client"):
        handler.handle(logging.LogRecord(name, logging.ERROR, f"{name}.py", 1, "text", (), None))
    assert [name for name, _ in handler.lines] == ["faust", "txbridge.worker", "faust.app", "txbridge.client"]


def test_a_partition_that_nobody_writes_to_is_no_error(caplog):
    # Made without Faust's own constructor, which needs an application and would ask it about the partition.
    consumer = TolerantConsumer.__new__(TolerantConsumer)
    consumer.verify_event_path(1e9, TP("RMQ_SYS_TRANS_END_TOPIC", 0))
    assert caplog.records == []


PROGRAM = """
from txbridge import log

log.configure("console", "info")
try:
    1 / 0
except ZeroDivisionError:
    log.get_logger("txbridge.test").exception("boom", a=1)
"""


def test_in_a_pipe_it_is_text_without_colours_and_warnings():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={name: value for name, value in os.environ.items() if name != "FORCE_COLOR"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    first, *trace = done.stderr.decode().splitlines()
    assert first.endswith("[txbridge.test] a=1")
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert b"\x1b" not in done.stderr


def test_what_a_call_returns_and_raises_is_passed_on():
    assert guarded(lambda number: number + 1, 1) == 2
    with pytest.raises(ValueError, match="mine"):
        guarded(int, "mine")


def test_a_hidden_error_is_raised():
    def flush():
        hidden = KafkaException(KafkaError(KafkaError._FENCED, "fenced by another"))
        raise SystemError("a callback returned a result with an exception set") from hidden

    with pytest.raises(KafkaException) as caught:
        guarded(flush)
    assert is_fenced(caught.value)


def test_an_error_that_is_lost_wants_an_abort_which_will_tell():
    def flush():
        raise SystemError("flush returned NULL without setting an exception")

    with pytest.raises(KafkaException, match="was lost") as caught:
        guarded(flush)
    assert caught.value.args[0].txn_requires_abort()
    assert not is_fenced(caught.value)
