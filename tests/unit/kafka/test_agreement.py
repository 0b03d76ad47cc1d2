"""The number of answers and the time that are enough, and the events that restart the count."""

from __future__ import annotations

from txbridge.kafka.agreement import Agreement


def test_answers_over_the_time_are_enough() -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=8)
    assert [agreement.note(at) for at in (0, 5, 9, 10, 11)] == [False, False, False, True, True]


def test_few_answers_are_not_however_long_it_took() -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=100)
    assert [agreement.note(at) for at in (0, 50, 51)] == [False, False, True]


def test_after_a_gap_the_count_begins_anew() -> None:
    # The process stood still for a minute, and so did the broker, whose answer is old.
    agreement = Agreement(seconds=10, answers=3, most_apart=8)
    assert [agreement.note(at) for at in (0, 5, 65, 66, 70, 74, 75)] == [False] * 6 + [True]


def test_an_answer_to_the_contrary_begins_it_anew() -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=8)
    assert [agreement.note(at) for at in (0, 5)] == [False, False]
    agreement.note_contradiction()
    assert [agreement.note(at) for at in (10, 15, 19, 20)] == [False, False, False, True]
