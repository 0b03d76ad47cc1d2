"""Held messages that are delivered at last: one line for a topic, however many they are."""

from __future__ import annotations

import pytest

from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import TransactionState
from txbridge.worker.observe import no_longer_held
from txbridge.worker.observe.no_longer_held import NoLongerHeld


class Log:
    """Keeps all logged events."""

    def __init__(self):
        self.lines = []

    def info(self, event, **fields):
        self.lines.append((event, fields))


@pytest.fixture
def log(monkeypatch):
    found = Log()
    monkeypatch.setattr(no_longer_held, "_log", found)
    return found


def entry(topic="orders", state=TransactionState.HELD, offset=1):
    return HalfEntry(
        offset=offset,
        transaction_id="0" * 32,
        group="group",
        real_topic=topic,
        born=0,
        size=1,
        next_due=0,
        state=state,
    )


def test_ten_thousand_of_two_partitions_are_one_line(log):
    told = NoLongerHeld()
    for batch in range(10):
        told.note_delivered(batch % 2, [entry()] * 1_000, 100.0 + batch)
        told.log_due(100.0 + batch)
    assert log.lines == []
    told.log_due(113.9)
    assert log.lines == []
    told.log_due(114.0)
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 10_000, "partitions": [0, 1]})]
    told.log_due(1_000.0)
    assert len(log.lines) == 1


def test_a_stream_that_does_not_end_is_told_after_all(log):
    told = NoLongerHeld()
    for second in range(71):
        told.note_delivered(3, [entry()], float(second))
        told.log_due(float(second))
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 71, "partitions": [3]})]


def test_what_was_delivered_at_once_is_not_told(log):
    told = NoLongerHeld()
    told.note_delivered(0, [entry(state=TransactionState.PENDING)], 0.0)
    told.log_due(None)
    assert log.lines == []


def test_an_owner_that_ends_leaves_the_lines_to_those_that_go_on_delivering(log):
    told = NoLongerHeld()
    with told.service():
        with told.service():
            told.note_delivered(0, [entry()], 100.0)
            told.note_delivered(1, [entry()], 101.0)
        # Partition 1 is gone, and partition 0 delivers more.
        assert log.lines == []
        told.note_delivered(0, [entry()], 102.0)
        told.log_due(106.9)
        assert log.lines == []
    # Nobody would come back to it.
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 3, "partitions": [0, 1]})]


def test_an_owner_that_fails_loses_no_line(log):
    told = NoLongerHeld()
    told.note_delivered(0, [entry()], 100.0)
    with pytest.raises(RuntimeError), told.service():
        raise RuntimeError
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 1, "partitions": [0]})]


def test_at_the_end_nothing_is_kept_back_and_invented_topics_share_a_line(log):
    told = NoLongerHeld()
    told.note_delivered(0, [entry(f"topic-{number}") for number in range(200)], 0.0)
    told.log_due(None)
    assert len(log.lines) == 51
    assert sum(fields["count"] for _, fields in log.lines) == 200
    assert log.lines[-1] == ("no_longer_held", {"topic": "(other)", "count": 150, "partitions": [0]})
