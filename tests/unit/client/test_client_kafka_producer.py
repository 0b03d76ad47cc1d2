"""The producer that survives librdkafka's fatal errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge import UsageError
from txbridge.client.kafka.connection import KafkaConnection, LastingProducer


class FakeProducer:
    """Raises a fatal error at the poll that a test chooses."""

    made: ClassVar = []

    def __init__(self, config):
        self.config = config
        self.log = []
        self.dies = False
        FakeProducer.made.append(self)

    def produce(self, topic, value, key, partition, on_delivery, nothing, timestamp, headers):
        assert (nothing, timestamp) == (None, 0)
        self.log.append(("produce", topic, value, key, partition, on_delivery, headers))

    def poll(self, timeout):
        self.log.append(("poll", timeout))
        if self.dies:
            self.dies = False
            raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence numbers lost", True))

    def purge(self):
        self.log.append("purge")

    def flush(self, timeout):
        self.log.append(("flush", timeout))

    def close(self):
        self.log.append("close")


@pytest.fixture
def wire():
    FakeProducer.made = []
    return LastingProducer({"bootstrap.servers": "127.0.0.1:1"}, KafkaConnection("127.0.0.1:1"), FakeProducer)


@pytest.mark.parametrize("name", ["stats_cb", "throttle_cb", "logger"])
def test_a_callback_or_logger_of_the_users_that_raises_is_logged_and_does_not_fail_who_serves(name, caplog):
    def broken(*given):
        raise ValueError(given)

    FakeProducer.made = []
    users = SimpleNamespace(log=broken) if name == "logger" else broken
    LastingProducer({"bootstrap.servers": "127.0.0.1:1", name: users}, KafkaConnection("127.0.0.1:1"), FakeProducer)
    guarded = FakeProducer.made[0].config[name]
    (guarded.log if name == "logger" else guarded)("news")
    assert "kafka_callback_raised" in caplog.text
    assert "ValueError: ('news',)" in caplog.text


def test_fatal_error_replaces_the_producer_once(wire, caplog):
    [first] = FakeProducer.made
    wire.produce("t", b"v", b"k", [("h", None)], print)
    first.dies = True
    wire.serve_reports(0.1)
    first, second = FakeProducer.made
    assert first.log == [
        ("produce", "t", b"v", b"k", -1, print, [("h", None)]),
        ("poll", 0.1),
        "purge",
        ("flush", 1.0),
        "close",
    ]
    assert second.config == first.config
    wire.produce("t", b"v", None, [], print, 3)
    wire.serve_reports(0)
    assert second.log == [("produce", "t", b"v", None, 3, print, []), ("poll", 0)]
    assert len(FakeProducer.made) == 2
    assert [record.event for record in caplog.records] == ["kafka_error", "kafka_producer_replaced"]


def test_close_does_not_wait_for_what_can_not_be_delivered(wire):
    wire.close()
    assert FakeProducer.made[0].log == ["purge", ("flush", 1.0), "close"]


def test_settings_that_librdkafka_refuses_are_the_users_mistake():
    with pytest.raises(UsageError, match=r"Kafka settings refused: .*batch.num.messages"):
        LastingProducer(
            {"bootstrap.servers": "127.0.0.1:1", "batch.num.messages": "many"}, KafkaConnection("127.0.0.1:1")
        )


def test_a_record_after_the_close_is_refused_by_name():
    """confluent-kafka's own producer, which raises a RuntimeError."""
    wire = LastingProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, KafkaConnection("127.0.0.1:1"))
    wire.close()
    with pytest.raises(UsageError, match="this client is closed"):
        wire.produce("t", b"v", None, [], print)


def test_a_record_for_a_producer_that_is_replaced_meanwhile_goes_to_the_next_one(wire):
    [first] = FakeProducer.made

    def closed(*_):
        # Another thread serves and replaces it, after this one has looked which producer there is.
        first.dies = True
        wire.serve_reports(0)
        raise RuntimeError("Producer has been closed")

    first.produce = closed
    wire.produce("t", b"v", b"k", [("h", None)], print)
    assert FakeProducer.made[1].log == [("produce", "t", b"v", b"k", -1, print, [("h", None)])]
