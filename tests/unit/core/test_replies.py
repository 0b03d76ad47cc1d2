"""Replies to END records: who knows the id of a transaction learns its state after the record, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partition_builder import COMMIT, ROLLBACK, UNKNOWN, Partition, end, entry, id_of
from txbridge.core import dedup
from txbridge.core.decision_record import Source
from txbridge.core.headers import MalformedRecordError
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.reply_record import Reply, is_reply, parse_reply, reply_headers
from txbridge.core.states import Outcome, TransactionState

NOW, DUE, LATER = 2_000, 90_000, 200_000
SCHEDULED, COMMITTED, ABANDONED = TransactionState.SCHEDULED, TransactionState.COMMITTED, TransactionState.ABANDONED
PENDING, ROLLED_BACK, HELD = TransactionState.PENDING, TransactionState.ROLLED_BACK, TransactionState.HELD


def find(offset: int, which: int, group: str = "orders"):
    """A question about the transaction with this half offset, which names the offset 0 to read up to."""
    return replace(end(offset, entry(0, UNKNOWN, id_of(which)), source=Source.FIND, group=group), reply="name")


def cancel(offset: int, half_offset: int, **wrong: str):
    return replace(end(offset, entry(half_offset, UNKNOWN, **wrong), source=Source.ABANDON), reply="name")


def told(draft) -> list[tuple[TransactionState | None, int | None]]:
    assert all((group, reply.name) == ("orders", "name") for group, reply in draft.replies)
    return [(reply.state, reply.half_offset) for _, reply in draft.replies]


def test_a_question_finds_a_transaction_by_its_id_in_every_state_and_has_no_effect():
    partition = Partition().prepare(0, deliver_at=DUE).prepare(1).prepare(2).prepare(3)
    partition.step(NOW, end(0, entry(0, COMMIT), entry(1, COMMIT), entry(2, ROLLBACK)))
    draft = partition.step(NOW, *(find(number + 1, number) for number in range(5)))
    assert told(draft) == [(SCHEDULED, 0), (COMMITTED, 1), (ROLLED_BACK, 2), (PENDING, 3), (None, None)]
    assert (draft.refused, draft.changed, draft.ops()) == ([], [], [])
    assert told(partition.step(DUE, find(6, 0))) == [(SCHEDULED, 0)], "END is applied before what is due"
    assert told(partition.step(DUE + 1, find(7, 0))) == [(COMMITTED, 0)]


def test_a_cancellation_is_answered_by_what_has_become_of_it():
    partition = Partition().prepare(0, deliver_at=DUE).prepare(1).prepare(2, deliver_at=DUE)
    record = end(0, entry(0, COMMIT), entry(1, ROLLBACK))
    draft = partition.step(NOW, record, cancel(1, 0), cancel(2, 0), cancel(3, 1), cancel(4, 2))
    assert told(draft) == [(ABANDONED, 0), (ABANDONED, 0), (ROLLED_BACK, 1), (PENDING, 2)]
    assert [one.entry.offset for one in draft.abandoned] == [0], "a repeat gives nothing up"
    # Committed before it, and delivered after it.
    partition.step(NOW, end(5, entry(2, COMMIT)))
    partition.step(DUE)
    assert told(partition.step(DUE, cancel(6, 2), cancel(7, 0))) == [(COMMITTED, 2), (ABANDONED, 0)]


@pytest.mark.parametrize("finished", [False, True])
def test_coordinates_and_group_without_the_id_tell_nothing(finished):
    partition = Partition().prepare(0, deliver_at=DUE).prepare(1)
    partition.step(NOW, end(0, entry(0, COMMIT)))
    if finished:
        partition.step(DUE)
    draft = partition.step(DUE, cancel(1, 0, transaction_id="F" * 32), cancel(2, 0, transaction_id=id_of(1)))
    assert told(draft) == [(None, None), (None, None)]
    assert not draft.abandoned


def test_another_group_learns_nothing_of_a_transaction_in_any_state():
    """Pending, scheduled, delivered, rolled back, cancelled, delivered at its time: also after a take-over."""
    partition = Partition().prepare(0).prepare(1, deliver_at=DUE).prepare(2, 3).prepare(4, 5, deliver_at=NOW + 1)
    record = end(0, entry(1, COMMIT), entry(2, COMMIT), entry(3, ROLLBACK), entry(4, COMMIT), entry(5, COMMIT))
    drafts = [partition.step(NOW, record, cancel(1, 4), *(find(2 + one, one, group="others") for one in range(6)))]
    partition.step(NOW + 2)
    drafts.append(partition.step(NOW + 2, *(find(8 + one, one, group="others") for one in range(6))))
    after = Partition(next_end=partition.queue.next_end)
    after.queue.restore_parked(ParkedEntries(one for one in partition.open_entries if one.parked))
    for position, (outcome, named) in enumerate(
        [(Outcome.COMMIT, [2, 5]), (Outcome.ROLLBACK, [3]), (Outcome.ABANDON, [4])]
    ):
        after.queue.restore_op(position, outcome, named)
    after.read(*partition.halves.values())
    drafts.append(after.step(NOW + 2, *(find(14 + one, one, group="others") for one in range(6))))
    for draft in drafts:
        assert [reply for group, reply in draft.replies if group == "others"] == [Reply("name")] * 6
    for one in (partition, after):
        offset = one.queue.next_end
        own = told(one.step(NOW + 2, *(find(offset + number, number) for number in range(6))))
        assert own == [(PENDING, 0), (SCHEDULED, 1), (COMMITTED, 2), (ROLLED_BACK, 3), (ABANDONED, 4), (COMMITTED, 5)]


def test_ids_are_known_long_after_the_preparation(monkeypatch):
    """Those of rows, and of messages that had waited: the window for copies has forgotten them."""
    monkeypatch.setattr(dedup.DeduplicationWindow, "find_id", lambda *_: None)
    monkeypatch.setattr(dedup, "_MOST_IDS", 1)
    partition = Partition().prepare(0, deliver_at=DUE).prepare(1, deliver_at=DUE + 1).prepare(2)
    partition.step(NOW, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    after = Partition(watermark=partition.queue.watermark, next_end=partition.queue.next_end)
    after.queue.restore_parked(ParkedEntries(one for one in partition.open_entries if one.parked))
    assert told(after.step(NOW, find(1, 0), find(2, 1), find(3, 3))) == [(SCHEDULED, 0), (SCHEDULED, 1), (None, None)]
    after.step(DUE)
    assert told(after.step(DUE, find(4, 0))) == [(COMMITTED, 0)]
    after.step(LATER, cancel(5, 1))
    assert told(after.step(LATER, find(6, 0), find(7, 1))) == [(None, None), (ABANDONED, 1)], "one id is remembered"


@pytest.mark.parametrize("reply", [Reply("a-1"), Reply("b", SCHEDULED, 7), Reply("c", ABANDONED, 0, 2)])
def test_a_reply_is_read_as_it_was_written(reply):
    headers = reply_headers(reply, 3)
    assert is_reply(headers)
    assert parse_reply(headers) == reply


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"TXB_V": b"2"}, "TXB_V"),
        ({"TXB_STATE": b"gone"}, "header TXB_STATE is not one of unknown, pending"),
        ({"TXB_STATE": None}, "header TXB_STATE is null"),
        ({"TXB_HALF": b"7"}, "TXB_HALF"),
    ],
)
def test_a_reply_that_breaks_a_rule(changed, error):
    headers = {**dict(reply_headers(Reply("b", SCHEDULED, 7), 3)), **changed}
    with pytest.raises(MalformedRecordError, match=error):
        parse_reply([*headers.items()])
    assert not is_reply([("TXB_HALF", b"3:7")])
