"""Effects of a draft that are more than an entry: what was refused, abandoned and counted, and why a message waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.core.end_record import EndEntry, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import RefusalReason

#: Why a message cannot be delivered now, or None: asked once for every commit.
Obstacle = Callable[[HalfEntry], str | None]


class InTurn(str):
    """An obstacle that is none of its own: it was not offered, but waits for others."""

    __slots__ = ()


MAX_CHECKS = "MAX_CHECKS"
EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An END entry without effect."""

    end_offset: int
    source: Source
    entry: EndEntry
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A held message that a person has given up, with the name and the reason that stand in END."""

    entry: HalfEntry
    operator: str | None
    reason: str | None


@dataclass(slots=True)
class Decisions:
    """How many END entries of one source had their effect."""

    #: All that were not refused.
    entries: int = 0
    #: Those that are held included.
    commits: int = 0
    rollbacks: int = 0
    resumes: int = 0
    abandons: int = 0

    @property
    def unknowns(self) -> int:
        """Those that decided nothing."""
        return self.entries - self.commits - self.rollbacks - self.resumes - self.abandons
