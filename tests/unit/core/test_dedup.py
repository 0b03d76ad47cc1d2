"""A half message that its producer has sent twice. The first one counts, whichever of the two an END names."""

from __future__ import annotations

import sys

from tests.support.partition_builder import COMMIT, Partition, end, entry, half, id_of
from txbridge.core.dedup import DeduplicationWindow
from txbridge.core.half_message import HalfMessage


def copy_of(first: int, offset: int) -> HalfMessage:
    return half(first)._replace(offset=offset)


A, B, C, D = (name * 32 for name in "ABCD")


def test_a_copy_is_recognised_after_many_others_within_the_window() -> None:
    recent = DeduplicationWindow()
    recent.note_id(0, A, 1_000)
    for offset in range(1, 60_000):
        assert recent.note_id(offset, f"{offset:032X}", 1_000 + offset) is None
    assert recent.note_id(60_000, A, 61_000) == 0
    # 16 bytes of id, 8 of offset, the index.
    columns = [column for one in recent._tables for column in (one.ids, one.offsets, one.index)]
    assert sum(map(sys.getsizeof, columns)) < 60 * 60_000


def test_what_is_older_than_the_window_is_forgotten_but_for_the_last_ones() -> None:
    recent = DeduplicationWindow(window=100, at_least=2)
    for offset, (name, born) in enumerate([(A, 0), (B, 30), (C, 60), (D, 90)]):
        recent.note_id(offset, name, born)
    assert recent.note_id(4, A, 100) == 0
    # Append times go back a little when another broker leads.
    assert recent.note_id(5, D, 80) == 3
    assert recent.note_id(6, "E" * 32, 250) is None
    assert recent.start == 2
    assert recent.note_id(7, A, 251) is None
    assert recent.note_id(8, D, 251) == 3
    alone = DeduplicationWindow(window=100, at_least=2)
    alone.note_id(0, A, 0)
    alone.note_id(1, B, 1_000_000)
    assert alone.note_id(2, A, 2_000_000) == 0


def test_a_copy_is_forgotten_with_the_messages_of_its_time() -> None:
    recent = DeduplicationWindow(window=100, at_least=1)
    for offset, (name, born) in enumerate([(A, 0), (A, 99), (B, 101), (C, 180)]):
        recent.note_id(offset, name, born)
    # The first one is gone. Its known copy is still known, a further one counts as a message.
    assert recent.first_of(1) == 0
    assert recent.note_id(4, A, 181) is None
    assert recent.first_of(1) == 0


def test_a_copy_is_known_as_long_as_its_first_is_open() -> None:
    open_ones = {0, 2}
    recent = DeduplicationWindow(window=100, at_least=1, is_open=open_ones.__contains__)
    for offset, (name, born) in enumerate([(A, 0), (A, 10), (B, 20), (C, 1_000), (D, 2_000)]):
        recent.note_id(offset, name, born)
    assert (recent.first_of(1), recent.start) == (0, 0)
    open_ones.remove(0)
    recent.note_id(5, "E" * 32, 3_000)
    # Finished: an END that names either of them has nothing to decide.
    assert (recent.first_of(1), recent.start) == (1, 4)


def test_a_take_over_reads_at_most_half_a_million_messages_again() -> None:
    recent = DeduplicationWindow(window=100, at_least=1, is_open={0}.__contains__)
    recent.note_id(0, A, 0)
    recent.note_id(1, A, 0)
    recent.note_id(500_000, B, 1_000)
    recent.note_id(500_001, C, 2_000)
    assert (recent.first_of(1), recent.start) == (0, 500_000)


def test_a_copy_that_an_end_names_is_set_aside_with_the_decision_whatever_else_waits() -> None:
    partition = Partition()
    partition.queue.note_id(half(0))
    partition.prepare(0)
    for offset in (1, 2):
        partition.queue.read_malformed(offset, 100)
    partition.queue.note_id(copy_of(0, 3))
    partition.queue.read_malformed(3, 100)
    draft = partition.draft(2_000, end(0, entry(3, COMMIT, id_of(0))))
    draft.set_aside_malformed(1)
    assert draft.malformed == [1, 3]
