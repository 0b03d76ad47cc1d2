"""Messages about the connection to Kafka, and their number."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from txbridge.client.base import log
from txbridge.client.kafka.connection import KafkaConnection


@pytest.fixture
def clock():
    return SimpleNamespace(now=1_000.0)


@pytest.fixture
def connection(clock):
    return KafkaConnection("127.0.0.1:9092", clock=lambda: clock.now)


def all_down():
    return KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


def events(caplog):
    return [record.event for record in caplog.records]


def test_one_line_when_it_goes_and_one_when_it_is_back(connection, caplog, clock):
    for _ in range(100):
        connection.on_error(
            KafkaError(KafkaError._TRANSPORT, "Connect to 127.0.0.1:9092 failed: KafkaConnection refused")
        )
        connection.on_error(all_down())
    for seconds, is_lost in ((5.9, False), (0.2, True)):
        clock.now += seconds
        assert connection.is_lost is is_lost
        connection.check_answers()
        connection.check_answers()
    assert events(caplog) == ["kafka_connection_lost"]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].fields == {
        "bootstrap_servers": "127.0.0.1:9092",
        "reason": "Connect to 127.0.0.1:9092 failed: KafkaConnection refused",
        "next": "retrying with back-off",
    }
    clock.now += 12.34
    connection.note_answer()
    clock.now += 1.4
    connection.note_answer()
    # Not reported yet: the connection may be lost again.
    assert connection.is_lost
    connection.note_loss("half messages are not acknowledged in time")
    clock.now += 1
    connection.note_answer()
    clock.now += 1.6
    for _ in range(100):
        connection.note_answer()
    assert not connection.is_lost
    assert events(caplog) == ["kafka_connection_lost", "kafka_connection_back"]
    assert caplog.records[1].fields["after_seconds"] == 14.7


def test_a_broker_that_stands_still_is_noticed_without_any_error(connection, caplog, clock):
    clock.now += 6.1
    assert connection.is_lost
    connection.check_answers()
    assert caplog.records[0].fields["reason"] == "no answer for 6 s"


def test_reports_that_come_late_are_no_outage_while_kafka_answers(connection, caplog, clock):
    """librdkafka notices twelve seconds after a broker goes on that its old connections were cut off."""
    clock.now += 80
    connection.check_answers()
    for _ in range(3):
        connection.note_answer()
        connection.check_answers()
        clock.now += 2
    assert not connection.is_lost
    for _ in range(3):
        connection.on_error(KafkaError(KafkaError._TRANSPORT, "127.0.0.1:9092: Disconnected"))
        connection.on_error(all_down())
        connection.check_answers()
        clock.now += 2
        connection.note_answer()
        assert not connection.is_lost
    assert events(caplog) == ["kafka_connection_lost", "kafka_connection_back"]


def test_a_record_given_up_counts_unless_something_worked_meanwhile(connection, caplog, clock):
    clock.now += 2.9
    connection.note_time_out("half messages", 3.0)
    assert not connection.is_lost
    clock.now += 0.2
    connection.note_time_out("half messages", 3.0)
    connection.note_time_out("half messages", 3.0)
    assert [record.fields["reason"] for record in caplog.records] == ["half messages are not acknowledged in time"]


def test_trouble_of_one_broker_is_not_reported(caplog):
    connection = KafkaConnection("a:1,b:1")
    connection.on_error(KafkaError(KafkaError._TRANSPORT, "a:1 is gone"))
    connection.note_answer()
    assert not connection.is_lost
    assert not caplog.records


def test_other_errors_once_a_minute_each(connection, caplog, clock, monkeypatch):
    monkeypatch.setattr(log.time, "monotonic", lambda: clock.now)
    for _ in range(10):
        connection.on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
        connection.on_error(KafkaError(KafkaError._SSL, "expired"))
        connection.note_answer()
        clock.now += 5.9
    assert [record.fields["error"] for record in caplog.records] == ["_AUTHENTICATION", "_SSL"]
    clock.now += 1
    connection.on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    assert [record.fields["error"] for record in caplog.records] == ["_AUTHENTICATION", "_SSL", "_AUTHENTICATION"]


def test_the_users_own_callback_hears_everything():
    heard = []
    connection = KafkaConnection("127.0.0.1:9092", heard.append)
    errors = [KafkaError(KafkaError._TRANSPORT), all_down(), KafkaError(KafkaError._SSL)]
    for error in errors:
        connection.on_error(error)
    assert heard == errors
