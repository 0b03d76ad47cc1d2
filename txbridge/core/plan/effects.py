"""Effects of a draft other than entries: refusals, abandoned messages, counts, and the reasons of waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.core.decision_record import DecisionEntry, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import RefusalReason

#: Function that tells why a message cannot be delivered now, or returns None. Called once for every commit.
Obstacle = Callable[[HalfEntry], str | None]


class InTurn(str):
    """An obstacle of other messages: this one was not offered to its topic, but waits for them."""

    __slots__ = ()


MAX_CHECKS = "MAX_CHECKS"
EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An END entry without effect."""

    end_offset: int
    source: Source
    entry: DecisionEntry
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A held or scheduled message that is given up, with the sender and the reason that END states."""

    entry: HalfEntry
    operator: str | None
    reason: str | None
    source: Source = Source.ABANDON


@dataclass(slots=True)
class Decisions:
    """Number of END entries of one source that were not refused."""

    #: All of them.
    entries: int = 0
    #: Held and scheduled messages included.
    commits: int = 0
    rollbacks: int = 0
    resumes: int = 0
    abandons: int = 0

    @property
    def unknowns(self) -> int:
        """Entries that decided nothing."""
        return self.entries - self.commits - self.rollbacks - self.resumes - self.abandons
