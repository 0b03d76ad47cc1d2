"""Inbox of events: level only when none is missed, whatever Faust reads meanwhile."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from txbridge.core.decision_record import DecisionEvent
from txbridge.core.names import Names
from txbridge.kafka.environment import Outside
from txbridge.worker.ingest.decision_log import DecisionInbox, DecisionLog


def event(offset: int) -> DecisionEvent:
    return DecisionEvent(offset, None, b"value", [])


def taken(inbox: DecisionInbox) -> list[int]:
    return [one.offset for one in inbox.take_events(10, 0)]


def test_it_is_level_behind_the_last_event() -> None:
    inbox = DecisionInbox()
    inbox.offer_event(event(4))
    assert not inbox.try_level(6, at_end=True)
    assert inbox.try_level(5, at_end=False)
    inbox.offer_event(event(5))
    assert taken(inbox) == [5]


def test_without_an_event_it_is_level_where_faust_has_not_read_yet_and_nothing_else_is_to_be_read() -> None:
    inbox = DecisionInbox(next_event=lambda: 3)
    assert not inbox.try_level(2, at_end=True)
    assert not inbox.try_level(5, at_end=False)
    assert inbox.try_level(5, at_end=True)
    for offset in (3, 4, 5, 6):
        inbox.offer_event(event(offset))
    assert taken(inbox) == [5, 6]


def test_an_event_that_comes_while_faust_is_looked_at_is_not_missed() -> None:
    def next_event() -> int:
        inbox.offer_event(event(5))
        return 5

    inbox = DecisionInbox(next_event=next_event)
    assert not inbox.try_level(5, at_end=True)
    assert inbox.must_read


@pytest.mark.parametrize("end", [0, 5])
def test_it_is_not_level_while_nobody_knows_where_faust_reads(end: int) -> None:
    """In a new namespace, too: Faust begins behind the records that come before it has joined."""
    assert not DecisionInbox().try_level(end, at_end=True)


def test_an_owner_that_waits_is_woken_when_faust_has_skipped_records() -> None:
    inbox = DecisionInbox(next_event=lambda: 3)
    assert inbox.try_level(3, at_end=True)
    owner = threading.Thread(target=inbox.take_events, args=(10, 3_600), daemon=True)
    owner.start()
    inbox.unlevel()
    owner.join(30)
    assert not owner.is_alive()
    assert inbox.must_read


def test_a_record_that_faust_has_skipped_is_read_although_it_follows_the_last_event() -> None:
    """The owner reads END again, and its reader, which must connect first, has nothing yet."""
    inbox = DecisionInbox(next_event=lambda: 6)
    inbox.offer_event(event(4))
    assert inbox.try_level(5, at_end=True)
    inbox.unlevel()
    assert not inbox.try_level(5, at_end=True)
    assert inbox.try_level(6, at_end=True)


def test_an_owner_that_reads_end_itself_gathers_for_as_long_as_before() -> None:
    outside = StoppedClock()
    inbox = DecisionInbox(outside)
    reader = SimpleNamespace(start=lambda _: None, poll=lambda *_: [], position=5, fetched_end=lambda: 5)
    state: Any = SimpleNamespace(queue=SimpleNamespace(next_end=5), end_gaps=None, partition=0, ends=None)
    state.decision_reader, state.checkpoint = reader, SimpleNamespace(marks={})
    log = DecisionLog(Names(), state, inbox, outside)
    inbox.unlevel()
    inbox.gather_events(0.2)
    assert outside.now_s == 0
    log.take_in_events(0)
    inbox.gather_events(0.2)
    assert outside.now_s == pytest.approx(0.2)


class StoppedClock(Outside):
    """Time passes only while somebody waits."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wait_for_change(self, condition: threading.Condition, seconds: float) -> None:
        self.now_s += seconds
