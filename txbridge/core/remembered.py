"""Remembered: the outcomes of the last messages below the low watermark, kept to answer late decisions."""

from __future__ import annotations

from txbridge.core.states import Outcome

#: Outcomes in one generation. There are two: about 8 MB when both are full.
GENERATION = 50_000


class Remembered:
    """The last outcomes that this process saw, by half offset. To drop a generation at once costs nothing each."""

    def __init__(self) -> None:
        self._younger: dict[int, Outcome] = {}
        self._older: dict[int, Outcome] = {}

    def note_outcome(self, offset: int, outcome: Outcome) -> None:
        # A discarded message that was resumed is finished twice. The last outcome counts, as the younger is asked
        # first.
        self._younger[offset] = outcome
        if len(self._younger) >= GENERATION:
            self._younger, self._older = {}, self._younger

    def get(self, offset: int) -> Outcome | None:
        return self._younger.get(offset) or self._older.get(offset)
