"""Deadlines and back-off, with a clock by hand."""

from __future__ import annotations

import math

from txbridge.backoff import Backoff
from txbridge.deadline import Deadline


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_is_one_budget_for_all_steps() -> None:
    clock = Clock()
    deadline = Deadline(3.0, clock)
    assert (deadline.at, deadline.left, deadline.timeout, deadline.is_over) == (103.0, 3.0, 3.0, False)
    clock.now = 102.5
    assert (deadline.left, deadline.timeout, deadline.is_over) == (0.5, 0.5, False)
    clock.now = 103.0
    assert (deadline.left, deadline.timeout, deadline.is_over) == (0.0, 0.0, True)
    clock.now = 109.0
    assert (deadline.left, deadline.timeout, deadline.is_over) == (0.0, 0.0, True)


def test_no_deadline_is_never_over_and_waits_without_a_limit() -> None:
    deadline = Deadline(None, Clock())
    assert (deadline.left, deadline.timeout, deadline.is_over) == (math.inf, None, False)


def test_no_time_at_all_is_over_at_once() -> None:
    assert Deadline(0.0, Clock()).is_over


def test_back_off_doubles_up_to_the_longest_and_begins_again() -> None:
    backoff = Backoff(0.2, 1.0)
    assert backoff.pause == 0.2
    assert [backoff.next() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.pause == 1.0
    backoff.reset()
    assert [backoff.next() for _ in range(2)] == [0.2, 0.4]
