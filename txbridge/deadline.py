"""Deadlines: until when something may take, as one budget for all of its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Deadline:
    """A point in time, `seconds` from now; None is never."""

    __slots__ = ("_clock", "at")

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By the clock (s).
        self.at = math.inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; 0 once it is over."""
        return max(0.0, self.at - self._clock())

    @property
    def timeout(self) -> float | None:
        """What is left, as the standard library's waits take it: None is no limit."""
        return None if self.at == math.inf else self.left

    @property
    def is_over(self) -> bool:
        return self._clock() >= self.at
