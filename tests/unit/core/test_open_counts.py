"""Counts of open messages at any time, and counts of a draft's decisions by their source."""

from __future__ import annotations

from dataclasses import replace

from tests.support.partition_builder import COMMIT, ROLLBACK, UNKNOWN, Partition, end, entry, resume
from txbridge.core import open_messages
from txbridge.core.decision_record import Source
from txbridge.core.states import Event, TransactionState


def test_a_draft_counts_what_each_source_has_decided():
    partition = Partition().prepare(*range(6))
    partition.obstacles["nowhere"] = "no such topic"
    partition.prepare(6, topic="nowhere").prepare(7, deliver_at=90_000)
    draft = partition.step(
        2_000,
        end(0, entry(0, COMMIT), entry(1, ROLLBACK), entry(2, UNKNOWN), entry(6, COMMIT), entry(7, COMMIT)),
        end(1, entry(2, COMMIT), entry(0, ROLLBACK), source=Source.CHECK),
        end(2, entry(3, ROLLBACK), source=Source.OPERATOR),
        resume(3, 4),
    )
    assert draft.decisions == {
        (Source.CLIENT, Event.COMMIT): 3,
        (Source.CLIENT, Event.ROLLBACK): 1,
        (Source.CLIENT, Event.UNKNOWN): 1,
        (Source.CHECK, Event.COMMIT): 1,
        (Source.OPERATOR, Event.ROLLBACK): 1,
    }
    assert len(draft.refused) == 2


def test_a_draft_tells_since_when_each_delivered_message_was_decided():
    partition = Partition().prepare(*range(4))
    draft = partition.step(
        2_000,
        replace(end(0, entry(0, COMMIT), entry(1, COMMIT), entry(2, ROLLBACK)), appended=1_500),
        replace(end(1, entry(2, COMMIT)), appended=1_600),
        end(2, entry(3, COMMIT)),
    )
    assert draft.delivered_since == {1_500: 2}


def test_p9_groups_beyond_the_first_ones_are_counted_together(monkeypatch):
    monkeypatch.setattr(open_messages, "MOST_NAMED", 2)
    counts = open_messages.OpenCounter()
    for group in ("a", "b", "c", "d", "c"):
        counts.add_message(group, TransactionState.PENDING, 5)
    counts.add_message("d", TransactionState.HELD, 5)
    assert counts.copy_counts().pending == {"a": {0: 1}, "b": {0: 1}, "(other)": {0: 3}}
    assert counts.copy_counts().others == {("(other)", TransactionState.HELD): 1}
    # There is room for a name again. A group that is counted with the others stays there until it has no open message.
    counts.add_message("a", TransactionState.PENDING, 5, -1)
    counts.add_message("c", TransactionState.PENDING, 5)
    counts.add_message("e", TransactionState.PENDING, 5)
    assert counts.copy_counts().pending == {"b": {0: 1}, "e": {0: 1}, "(other)": {0: 4}}
    for group in ("c", "c", "c", "d", "b", "e"):
        counts.add_message(group, TransactionState.PENDING, 5, -1)
    counts.add_message("d", TransactionState.HELD, 5, -1)
    assert counts.copy_counts() == open_messages.OpenCounts({}, {})
    counts.add_message("c", TransactionState.PENDING, 5)
    assert counts.copy_counts().pending == {"c": {0: 1}}
