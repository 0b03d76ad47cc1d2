"""The schedule: it yields due and current entries once, and does not grow with outdated ones."""

from __future__ import annotations

from txbridge.core.timers import TimerQueue


class Dues:
    """The current entries: the last due time of each offset."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.asked = 0
        self.schedule = TimerQueue(self._is_current)

    def _is_current(self, due: int, offset: int) -> bool:
        self.asked += 1
        return self.of.get(offset) == due

    def push(self, due: int, offset: int) -> None:
        self.of[offset] = due
        self.schedule.push_item(due, offset)


def test_what_is_due_later_is_not_looked_at():
    dues = Dues()
    dues.push(5_000, 1)
    dues.push(5_001, 2)
    del dues.of[1]
    assert dues.schedule.next_due(3_000) is None
    assert dues.asked == 0
    assert dues.schedule.next_due(5_000) is None
    assert dues.schedule.next_due(6_000) == 5_001


def test_p9_what_is_out_of_date_does_not_gather_behind_an_item_that_waits():
    dues = Dues()
    dues.push(1, 0)
    largest = 0
    for offset in range(1, 50_000):
        dues.push(offset + 1, offset)
        del dues.of[offset]
        largest = max(largest, len(dues.schedule))
    assert largest <= 1_024
    assert dues.schedule.take_due(10**9, 10) == [0]


def test_p9_repetitions_do_not_gather_either():
    dues = Dues()
    for _ in range(50_000):
        dues.push(1, 0)
    assert len(dues.schedule) < 1_024


def test_p9_a_thousand_pushes_in_a_row_never_pay_for_more_than_their_share():
    dues = Dues()
    most = 0
    for offset in range(0, 300_000, 1_000):
        before = dues.asked
        for each in range(offset, offset + 1_000):
            dues.push(each, each)
        most = max(most, dues.asked - before)
    assert most <= 8_000


def test_what_is_due_in_days_takes_its_turn():
    dues = Dues()
    day = 86_400_000
    for offset, due in enumerate([3 * day, day, 2 * day, day + 1, 5, day]):
        dues.push(due, offset)
    assert dues.schedule.next_due() == 5
    assert dues.schedule.take_due(day, 9) == [4, 1, 5]
    # Entries that are pushed before those that have come up already, and between them.
    dues.push(7, 9)
    dues.push(2 * day + 5, 10)
    assert dues.schedule.next_due() == 7
    assert dues.schedule.take_due(9 * day, 3) == [9, 3, 2]
    assert dues.schedule.take_due(9 * day, 9) == [10, 0]
    assert (dues.schedule.next_due(), len(dues.schedule)) == (None, 0)


def test_what_a_take_over_loads_is_taken_like_anything_else():
    dues = Dues()
    for offset in range(5_000):
        dues.of[offset] = 1_000_000 + offset
        dues.schedule.load_item(1_000_000 + offset, offset)
    assert dues.asked == 0
    assert dues.schedule.take_due(1_000_003, 9) == [0, 1, 2, 3]
    dues.of[4] = 999
    assert dues.schedule.next_due() == 1_000_005


def test_very_many_that_are_due_in_the_same_second_come_in_their_order():
    """Offsets in another order than times; some go out of date, and others come, while they are taken."""
    dues = Dues()
    for offset in range(20_000):
        dues.push(1_024 + offset * 7 % 1_000, offset)
    for offset in range(0, 20_000, 3):
        del dues.of[offset]
    dues.push(1_500, 2**62)
    expected = [offset for _, offset in sorted((due, offset) for offset, due in dues.of.items())]
    assert dues.schedule.peek_due(3_000, 3) == expected[:3]
    found = []
    while taken := dues.schedule.take_due(3_000, 1_000):
        found += taken
        for offset in taken:
            del dues.of[offset]
        dues.push(9_000, 3 * len(found))
    assert found == expected
    assert dues.schedule.take_due(9_000, 99) == sorted(dues.of)
