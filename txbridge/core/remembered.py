"""Remembered: the outcomes of the last messages below the low watermark, kept to answer late decisions."""

from __future__ import annotations

from array import array

from txbridge.core.states import Outcome

#: Places, a power of two: one megabyte of every partition. A second decision about a message mostly comes within
#: seconds of the first.
PLACES = 2**16


class Remembered:
    """The last outcomes that this process saw. The messages whose offsets differ by PLACES share a place."""

    def __init__(self) -> None:
        self._mask = PLACES - 1
        self._offsets = array("q", [-1]) * PLACES
        self._outcomes: list[Outcome | None] = [None] * PLACES

    def note_outcome(self, offset: int, outcome: Outcome) -> None:
        # A discarded message that was resumed is finished twice. The last outcome counts.
        place = offset & self._mask
        self._offsets[place], self._outcomes[place] = offset, outcome

    def get(self, offset: int) -> Outcome | None:
        place = offset & self._mask
        return self._outcomes[place] if self._offsets[place] == offset else None
