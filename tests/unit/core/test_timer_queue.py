"""The schedule: it yields due and current entries once, and does not grow with outdated ones."""

from __future__ import annotations

from txbridge.core.timer_queue import TimerQueue


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
    assert dues.schedule.next_due(5_000) == 5_001
    assert dues.schedule.next_due(3_000) == 5_001, "it is known by now"


def test_p9_what_is_out_of_date_does_not_gather_behind_an_item_that_waits():
    dues = Dues()
    dues.push(1, 0)
    largest = 0
    for offset in range(1, 50_000):
        dues.push(offset + 1, offset)
        del dues.of[offset]
        largest = max(largest, len(dues.schedule))
    # And a push for each of the 49 seconds that are cleaned one by one.
    assert largest < 1_024 + 50
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
    # Eight for each, the second that was begun before, and the one begun last.
    assert most <= 8_000 + 2 * 1_024


def test_cleaning_costs_a_constant_number_of_questions_per_push():
    dues = Dues()
    pushes = 50_000
    for offset in range(pushes):
        dues.push(offset, offset)
    assert len(dues.schedule) == pushes
    assert dues.asked < 3 * pushes
    assert dues.schedule.take_due(pushes, pushes) == list(range(pushes))


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


def test_very_many_that_are_due_in_the_same_second_come_in_their_order_and_not_all_at_once():
    """Offsets in another order than times; pages of 8,192."""
    dues = Dues()
    for offset in range(20_000):
        dues.push(1_024 + offset * 7 % 1_000, offset)
    expected = [offset for _, offset in sorted((due, offset) for offset, due in dues.of.items())]
    # Pushes have paid for cleaning.
    dues.asked = 0
    assert dues.schedule.next_due() == 1_024
    assert dues.asked == 8_192 + 1
    assert dues.schedule.peek_due(3_000, 3) == expected[:3]
    found = []
    while taken := dues.schedule.take_due(3_000, 1_000):
        found += taken
        for offset in taken:
            del dues.of[offset]
    assert found == expected
    assert len(dues.schedule) == 0


def test_what_is_pushed_while_very_many_are_due_takes_its_place_among_them():
    dues = Dues()
    for offset in range(20_000):
        dues.push(2_048 + offset // 20, offset)
    assert dues.schedule.take_due(2_047, 9) == []
    assert dues.schedule.take_due(2_048, 100) == list(range(20))
    for offset in range(20):
        del dues.of[offset]
    # Before all, in the heap's page, behind it, in the same ms as others, and the next day.
    for due, offset in ((100, 30_000), (2_100, 30_001), (2_900, 30_002), (2_950, 7), (3_072, 30_003)):
        dues.push(due, offset)
    expected = [offset for due, offset in sorted((due, offset) for offset, due in dues.of.items()) if due <= 3_071]
    assert dues.schedule.next_due() == 100
    assert dues.schedule.take_due(3_071, 50_000) == expected
    assert dues.schedule.take_due(3_072, 9) == [30_003]


def test_what_went_out_of_date_in_a_large_day_is_dropped():
    dues = Dues()
    for offset in range(20_000):
        dues.push(3_000, offset)
    dues.of = dict.fromkeys((5, 9_000, 19_999), 3_000)
    assert dues.schedule.next_due(2_000) is None
    assert dues.schedule.take_due(3_000, 9) == [5, 9_000, 19_999]
    assert (len(dues.schedule), dues.schedule.next_due()) == (0, None)


def test_an_offset_that_is_beyond_all_others_is_scheduled_as_well():
    dues = Dues()
    for offset in range(9_000):
        dues.push(3_000, offset)
    dues.push(2_999, 2**60)
    assert dues.schedule.take_due(3_000, 2) == [2**60, 0]
    dues.push(3_000, 2**61)
    assert dues.schedule.take_due(3_000, 10_000)[-1] == 2**61
