"""Remembered: how the last messages below the low watermark were finished, so that a late decision can be answered."""

from __future__ import annotations

from txbridge.core.states import Outcome

#: Outcomes that are remembered, in two generations of this many: about 8 MB when both are full.
GENERATION = 50_000


class Remembered:
    """By half offset, the last outcomes that this process saw. Forgetting half of them at once costs nothing each."""

    def __init__(self) -> None:
        self._younger: dict[int, Outcome] = {}
        self._older: dict[int, Outcome] = {}

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def note(self, offset: int, outcome: Outcome) -> None:
        # A discarded message that was resumed is finished twice: the last time counts, as the younger is asked first.
        self._younger[offset] = outcome
        if len(self._younger) >= GENERATION:
            self._younger, self._older = {}, self._younger

    def get(self, offset: int) -> Outcome | None:
        return self._younger.get(offset) or self._older.get(offset)
