"""Outcomes of the last messages that were finished, kept to answer late decisions and cancellations."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from txbridge.core.states import Outcome

#: Places, a power of two: one megabyte of every partition. A second decision about a message mostly comes within
#: seconds of the first.
PLACES = 2**16
#: Messages whose id is remembered, some 200 bytes each: those of some seconds at least.
_MOST_IDS = 10_000


class Finished(NamedTuple):
    """How a message was finished."""

    outcome: Outcome
    #: Its producer group; None until a take-over has read the half message.
    group: str | None = None


class Remembered:
    """The last outcomes that this process saw. The messages whose offsets differ by PLACES share a place."""

    def __init__(self) -> None:
        self._mask = PLACES - 1
        self._offsets = array("q", [-1]) * PLACES
        self._outcomes: list[Finished | None] = [None] * PLACES

    def note_outcome(self, offset: int, outcome: Finished) -> None:
        # A discarded message that was resumed is finished twice. The last outcome counts.
        place = offset & self._mask
        self._offsets[place], self._outcomes[place] = offset, outcome

    def get(self, offset: int) -> Finished | None:
        place = offset & self._mask
        return self._outcomes[place] if self._offsets[place] == offset else None


class KnownId(NamedTuple):
    """A transaction that was found by its id."""

    offset: int
    #: None: open, or not known.
    finished: Finished | None = None
    #: Of an abandoned one: number of messages that were delivered before. None: not known.
    delivered: int | None = None


class RememberedIds:
    """Ids and outcomes of the last finished messages that had been scheduled or held.

    A cancellation that comes too late names an id that may be days old. `dedup` knows the ids of a minute.
    """

    def __init__(self) -> None:
        self._found: dict[str, KnownId] = {}

    def note_finished(self, transaction_id: str, known: KnownId) -> None:
        self._found[transaction_id] = known
        if len(self._found) > _MOST_IDS:
            del self._found[next(iter(self._found))]

    def find_id(self, transaction_id: str) -> KnownId | None:
        return self._found.get(transaction_id)
