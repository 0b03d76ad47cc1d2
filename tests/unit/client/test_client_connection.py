"""Messages about the connection to Kafka, and their number."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from txbridge.client.kafka import connection as module
from txbridge.client.kafka.connection import Connection


class Clock:
    now = 1_000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def all_down():
    return KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


def events(caplog):
    return [record.event for record in caplog.records]


def test_one_line_when_it_goes_and_one_when_it_is_back(caplog, clock):
    connection = Connection("127.0.0.1:9092")
    for _ in range(100):
        connection.on_error(KafkaError(KafkaError._TRANSPORT, "Connect to 127.0.0.1:9092 failed: Connection refused"))
        connection.on_error(all_down())
    assert connection.is_lost
    assert events(caplog) == ["kafka_connection_lost"]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].fields == {
        "bootstrap_servers": "127.0.0.1:9092",
        "reason": "Connect to 127.0.0.1:9092 failed: Connection refused",
        "next": "retrying with back-off",
    }
    clock.now += 12.34
    connection.works()
    clock.now += 1.4
    connection.works()
    # Not reported yet: the connection may be lost again.
    assert connection.is_lost
    connection.on_error(all_down())
    clock.now += 1
    connection.works()
    clock.now += 1.6
    for _ in range(100):
        connection.works()
    assert not connection.is_lost
    assert events(caplog) == ["kafka_connection_lost", "kafka_connection_back"]
    assert caplog.records[1].fields["after_seconds"] == 14.7


def test_a_record_given_up_counts_unless_something_worked_meanwhile(caplog, clock):
    connection = Connection("127.0.0.1:9092")
    clock.now += 2.9
    connection.gave_up("half messages", 3.0)
    assert not connection.is_lost
    clock.now += 0.2
    connection.gave_up("half messages", 3.0)
    connection.gave_up("half messages", 3.0)
    assert [record.fields["reason"] for record in caplog.records] == ["half messages are not acknowledged in time"]


def test_trouble_of_one_broker_is_not_reported(caplog):
    connection = Connection("a:1,b:1")
    connection.on_error(KafkaError(KafkaError._TRANSPORT, "a:1 is gone"))
    connection.works()
    assert not connection.is_lost
    assert not caplog.records


def test_other_errors_once_a_minute_each(caplog, clock):
    connection = Connection("127.0.0.1:9092")
    for _ in range(10):
        connection.on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
        connection.on_error(KafkaError(KafkaError._SSL, "expired"))
        connection.works()
        clock.now += 5.9
    assert [record.fields["error"] for record in caplog.records] == ["_AUTHENTICATION", "_SSL"]
    clock.now += 1
    connection.on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    assert [record.fields["error"] for record in caplog.records] == ["_AUTHENTICATION", "_SSL", "_AUTHENTICATION"]


def test_the_users_own_callback_hears_everything():
    heard = []
    connection = Connection("127.0.0.1:9092", heard.append)
    errors = [KafkaError(KafkaError._TRANSPORT), all_down(), KafkaError(KafkaError._SSL)]
    for error in errors:
        connection.on_error(error)
    assert heard == errors
