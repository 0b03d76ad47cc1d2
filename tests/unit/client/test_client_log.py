"""Lines of the client's log: a repeated exception does not fill the disk."""

from __future__ import annotations

import logging

import pytest

from txbridge.client.base import log
from txbridge.client.base.log import report


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1_000.0

    monkeypatch.setattr(log.time, "monotonic", lambda: Clock.now)
    return Clock


def failing(error):
    try:
        raise error
    except type(error) as raised:
        return raised


def other(error):
    try:
        raise error
    except type(error) as raised:
        return raised


def lines(caplog):
    return [(record.fields.get("repeated"), bool(record.exc_info)) for record in caplog.records if record.levelno > 10]


def test_the_first_of_a_minute_in_full_then_counted(caplog, clock):
    for number in range(1_000):
        report(
            logging.WARNING, "check_local_transaction_raised", exception=failing(KeyError(number)), transaction=number
        )
    assert lines(caplog) == [(None, True)]
    assert caplog.records[0].fields == {"transaction": 0}
    clock.now += 60
    for number in range(10):
        report(logging.WARNING, "check_local_transaction_raised", exception=failing(KeyError(number)))
    assert lines(caplog) == [(None, True), (999, True)]
    assert "repeated=999" in caplog.text


def test_another_exception_another_place_and_another_event_are_other_kinds(caplog, clock):
    for _ in range(3):
        report(logging.WARNING, "check_local_transaction_raised", exception=failing(KeyError()))
        report(logging.WARNING, "check_local_transaction_raised", exception=failing(ValueError()))
        report(logging.WARNING, "check_local_transaction_raised", exception=other(KeyError()))
        report(logging.WARNING, "local_transaction_raised", exception=failing(KeyError()))
        report(logging.WARNING, "client_closed")
    assert lines(caplog) == [(None, True)] * 4 + [(None, False)] * 3


def test_each_is_there_at_debug_without_its_trace(caplog, clock):
    caplog.set_level(logging.DEBUG)
    for number in range(3):
        report(logging.WARNING, "check_local_transaction_raised", exception=failing(KeyError()), transaction=number)
    assert [(record.levelname, record.fields["transaction"], bool(record.exc_info)) for record in caplog.records] == [
        ("WARNING", 0, True),
        ("DEBUG", 1, False),
        ("DEBUG", 2, False),
    ]


def test_what_is_remembered_is_bounded(caplog, clock):
    for number in range(10_000):
        report(logging.WARNING, f"event_{number}", exception=failing(KeyError()))
    assert len(caplog.records) == 10_000
    assert len(log._kinds) <= 100
