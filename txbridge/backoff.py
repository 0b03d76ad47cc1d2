"""Back-off: pauses between attempts that fail."""

from __future__ import annotations


class Backoff:
    """Each pause is twice as long as the one before, up to the longest (s)."""

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        #: The next one.
        self.pause = first

    def next(self) -> float:
        """The pause before the next attempt; the one after it is longer."""
        pause = self.pause
        self.pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """An attempt has worked."""
        self.pause = self._first
