"""The pauses that the measurement of a rolling restart counts. Times are chosen by hand, in seconds."""

from __future__ import annotations

import pytest

from tests.bench.rolling import longest_pause


@pytest.mark.parametrize(
    ("arrivals", "sightings", "expected"),
    [
        # Decisions all along, nothing visible from 2 to 5: the first waiting one came at 2.5.
        ([1, 2, 2.5, 3, 4, 5], [1.1, 2.1, 5.1], 2.6),
        # No decisions between 2 and 5. The one at 5 was visible at once, so there is no pause.
        ([1, 2, 5], [1.1, 2.1, 5.1], 0.1),
        # Nothing becomes visible any more: the pause lasts until the end, 10.
        ([1, 2, 3], [1.1], 8.0),
        # Decisions and sightings before the beginning, 0, or after the end do not count.
        ([-5, 1, 11], [-1, 1.1, 30], 0.1),
        ([], [], 0.0),
    ],
)
def test_a_pause_is_the_time_in_which_decisions_wait_and_nothing_becomes_visible(
    arrivals: list[float], sightings: list[float], expected: float
) -> None:
    assert longest_pause(arrivals, sightings, 0, 10) == pytest.approx(expected)
