"""Deadlines: one time limit for all steps of an operation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Deadline:
    """A point in time, `seconds` from now. None means no limit."""

    __slots__ = ("_clock", "at")

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Time of the deadline, by `clock` (s).
        self.at = math.inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; 0 once the deadline has passed."""
        return max(0.0, self.at - self._clock())

    @property
    def timeout(self) -> float | None:
        """Seconds that are left, as a time-out for the standard library: None means no limit."""
        return None if self.at == math.inf else self.left

    @property
    def is_over(self) -> bool:
        return self._clock() >= self.at
