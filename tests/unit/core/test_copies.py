"""A half message that its producer has sent twice: the first is the message, whichever of the two an END names."""

from __future__ import annotations

from tests.unit.core.building import COMMIT, POLICY, ROLLBACK, Partition, end, entry, half, id_of
from txbridge.core.copies import RecentHalves
from txbridge.core.half_message import HalfMessage
from txbridge.core.half_queue import HalfQueue


def copy_of(first: int, offset: int) -> HalfMessage:
    return half(first)._replace(offset=offset)


def test_a_repeated_id_is_a_copy_of_the_first() -> None:
    recent = RecentHalves()
    assert [recent.note(3, "A", 10), recent.note(4, "B", 10)] == [None, None]
    assert [recent.note(5, "A", 10), recent.note(9, "A", 10)] == [3, 3]
    assert [recent.first_of(offset) for offset in (3, 4, 5, 9, 1_000)] == [3, 4, 3, 3, 1_000]


def test_the_last_ones_are_known_by_number_and_by_bytes() -> None:
    by_number = RecentHalves(records=2, size=1_000)
    for offset, name in enumerate("ABC"):
        by_number.note(offset, name, 10)
    assert by_number.start == 1
    assert by_number.note(3, "A", 10) is None

    by_bytes = RecentHalves(records=100, size=25)
    for offset, name in enumerate("ABC"):
        by_bytes.note(offset, name, 10)
    assert by_bytes.start == 1
    # One that is larger than all that may be kept is kept until the next.
    by_bytes.note(3, "D", 5_000)
    assert (by_bytes.start, by_bytes.note(4, "D", 1)) == (3, 3)


def test_as_many_bytes_as_may_be_kept_are_kept() -> None:
    recent = RecentHalves(records=100, size=30)
    for offset, name in enumerate("ABC"):
        recent.note(offset, name, 10)
    assert recent.start == 0
    recent.note(3, "D", 1)
    assert recent.start == 1


def test_a_copy_is_forgotten_with_its_own_record_and_a_later_one_with_the_first() -> None:
    recent = RecentHalves(records=2, size=1_000)
    for offset, name in ((0, "A"), (1, "A"), (2, "B")):
        recent.note(offset, name, 10)
    # The first is gone: what copied it is known still, a further one counts as a message.
    assert recent.first_of(1) == 0
    assert recent.note(3, "A", 10) is None
    assert recent.first_of(1) == 1


def test_the_next_half_message_is_no_copy_of_the_last() -> None:
    queue = HalfQueue(POLICY)
    assert [queue.note_id(half(offset)) for offset in (0, 1, 2)] == [None, None, None]
    assert queue.note_id(copy_of(1, 3)) == 1


def test_either_offset_ends_the_one_transaction() -> None:
    partition = Partition()
    partition.queue.note_id(half(0))
    partition.prepare(0)
    assert partition.queue.note_id(copy_of(0, 1)) == 0
    assert partition.queue.read_malformed(1, 100)
    draft = partition.draft(2_000, end(0, entry(1, COMMIT, id_of(0))))
    assert ([one.offset for one in draft.deliver], draft.malformed, draft.refused) == ([0], [1], [])
    draft.apply()
    late = partition.draft(3_000, end(1, entry(1, ROLLBACK, id_of(0)), entry(0, COMMIT)))
    assert [refusal.reason.value for refusal in late.refused] == ["contradiction", "repeat"]


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


def test_the_take_over_reads_from_where_the_same_copies_are_known() -> None:
    queue = HalfQueue(POLICY, watermark=50)
    assert queue.recent_start == 50
    # Below the watermark: only its id is of interest.
    assert queue.note_id(half(40)) is None
    assert not queue.read(half(40))
    assert (queue.recent_start, queue.watermark) == (40, 50)
    assert queue.note_id(copy_of(40, 50)) == 40
