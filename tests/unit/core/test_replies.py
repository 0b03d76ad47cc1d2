"""Replies to END records: who knows the id of a transaction learns its state after the record, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partition_builder import COMMIT, UNKNOWN, Partition, end, entry, id_of
from txbridge.core import dedup
from txbridge.core.decision_record import Source
from txbridge.core.half_message import Reply, is_reply, parse_reply, reply_headers
from txbridge.core.headers import MalformedRecordError
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.states import TransactionState

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


@pytest.mark.parametrize("finished", [False, True])
def test_coordinates_and_group_without_the_id_tell_nothing(finished):
    partition = Partition().prepare(0, deliver_at=DUE).prepare(1)
    partition.step(NOW, end(0, entry(0, COMMIT)))
    if finished:
        partition.step(DUE)
    draft = partition.step(DUE, cancel(1, 0, transaction_id="F" * 32), cancel(2, 0, transaction_id=id_of(1)))
    assert told(draft) == [(None, None), (None, None)]
    assert not draft.abandoned


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
