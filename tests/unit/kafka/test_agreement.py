"""The number of answers and the time that are enough, and the events that restart the count."""

from __future__ import annotations

import pytest

from txbridge.kafka.agreement import Agreement


@pytest.mark.parametrize(
    ("most_apart", "answers"),
    [
        (8, {0: False, 5: False, 9: False, 10: True, 11: True}),
        # Too few, however long it took.
        (100, {0: False, 50: False, 51: True}),
        # The process stood still for a minute, and so did the broker, whose answer is old: the count begins anew.
        (8, {0: False, 5: False, 65: False, 66: False, 70: False, 74: False, 75: True}),
    ],
    ids=["enough", "too few", "a gap"],
)
def test_three_answers_over_ten_seconds_without_a_gap_are_enough(most_apart: float, answers: dict[int, bool]) -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=most_apart)
    assert {at: agreement.note(at) for at in answers} == answers


def test_an_answer_to_the_contrary_begins_it_anew() -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=8)
    assert [agreement.note(at) for at in (0, 5)] == [False, False]
    agreement.note_contradiction()
    assert [agreement.note(at) for at in (10, 15, 19, 20)] == [False, False, False, True]
