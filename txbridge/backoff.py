"""Back-off: pauses between failed attempts."""

from __future__ import annotations


class Backoff:
    """Pauses in seconds. Each one is twice as long as the one before, up to `longest`."""

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        #: The next pause (s).
        self.pause = first

    def next(self) -> float:
        """Return the pause (s) before the next attempt, and lengthen the one after it."""
        pause = self.pause
        self.pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """Start again with the first pause, after an attempt that worked."""
        self.pause = self._first
