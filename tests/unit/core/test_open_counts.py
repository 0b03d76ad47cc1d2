"""Counts of open messages at any time, and counts of a draft's decisions by their source."""

from __future__ import annotations

from dataclasses import replace

from tests.support.partition_builder import COMMIT, ROLLBACK, UNKNOWN, Partition, end, entry, resume
from txbridge.core import open_counts
from txbridge.core.decision_record import Source
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.open_counts import SLOT_MS
from txbridge.core.plan.effects import Decisions
from txbridge.core.states import TransactionState


def test_pending_messages_are_counted_by_group_and_time_of_birth():
    partition = Partition().prepare(0, 1, born=1_000).prepare(2, born=SLOT_MS).prepare(3, group="billing")
    assert partition.queue.open_counts().pending == {"orders": {0: 2, 1: 1}, "billing": {0: 1}}
    partition.step(2_000, end(0, entry(0, COMMIT), entry(1, ROLLBACK), entry(3, UNKNOWN)))
    assert partition.queue.open_counts().pending == {"orders": {1: 1}, "billing": {0: 1}}


def test_a_group_with_nothing_open_is_forgotten():
    partition = Partition().prepare(0)
    partition.step(2_000, end(0, entry(0, COMMIT)))
    assert partition.queue.open_counts().pending == {}
    assert partition.queue.open_counts().others == {}


def test_held_and_discarded_messages_are_counted_by_group():
    partition = Partition().prepare(0, 1)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(2_000, end(0, entry(0, COMMIT)))
    assert partition.queue.open_counts().others == {("orders", TransactionState.HELD): 1}
    assert partition.queue.open_counts().pending == {"orders": {0: 1}}
    partition.obstacles.clear()
    partition.step(4_000_000)
    assert partition.queue.open_counts().others == {}


def test_parked_messages_are_counted_before_and_after_they_have_become_rows():
    partition = Partition().prepare(*range(3)).prepare(3, group="billing")
    partition.dead |= {"orders", "billing"}
    before = partition.queue.open_counts()
    assert len(partition.step(100_000).parked) == 4
    assert partition.queue.open_counts() == before
    partition.step(100_001, end(0, entry(1, COMMIT)))
    assert partition.queue.open_counts().pending == {"orders": {0: 2}, "billing": {0: 1}}


def test_what_a_take_over_restores_is_counted():
    partition = Partition().prepare(*range(3))
    partition.dead.add("orders")
    parked = partition.step(100_000).parked
    other = Partition(watermark=3)
    other.queue.restore_parked(ParkedEntries(parked))
    assert other.queue.open_counts() == partition.queue.open_counts()


def test_a_draft_counts_what_each_source_has_decided():
    partition = Partition().prepare(*range(6))
    partition.obstacles["nowhere"] = "no such topic"
    partition.prepare(6, topic="nowhere")
    draft = partition.step(
        2_000,
        end(0, entry(0, COMMIT), entry(1, ROLLBACK), entry(2, UNKNOWN), entry(6, COMMIT)),
        end(1, entry(2, COMMIT), entry(0, ROLLBACK), source=Source.CHECK),
        end(2, entry(3, ROLLBACK), source=Source.OPERATOR),
        resume(3, 4),
    )
    assert draft.decisions == {
        Source.CLIENT: Decisions(entries=4, commits=2, rollbacks=1),
        Source.CHECK: Decisions(entries=1, commits=1),
        Source.OPERATOR: Decisions(entries=1, rollbacks=1),
        Source.RESUME: Decisions(),
    }
    assert draft.decisions[Source.CLIENT].unknowns == 1
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
    monkeypatch.setattr(open_counts, "MOST_NAMED", 2)
    counts = open_counts.OpenCounter()
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
    assert counts.copy_counts() == open_counts.OpenCounts({}, {})
    counts.add_message("c", TransactionState.PENDING, 5)
    assert counts.copy_counts().pending == {"c": {0: 1}}
