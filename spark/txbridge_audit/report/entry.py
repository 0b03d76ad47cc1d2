"""One violation or finding of a report, with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """Coordinates of one record that is evidence."""

    #: Role of the record: half, end, op, copy, discard, parked, check, open, progress, record. `claims` is the half
    #: message that a copy names although there is none. `gone` is one that HALF no longer holds.
    role: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """What an operator did to a transaction. Anyone who can write to END can claim it: name and reason are escaped."""

    #: Append time, ms.
    at: int
    who: str
    #: commit, rollback, unknown, resume or abandon.
    what: str
    reason: str
    #: What the protocol made of it: `decided`, `unknown`, `resume`, `abandon`, or why it was refused.
    ruling: str

    def __str__(self) -> str:
        outcome = "" if self.ruling in {"decided", self.what} else f" ({self.ruling})"
        return f"{self.what} by {self.who or 'nobody named'}{outcome}: {self.reason or 'no reason given'}"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A violation that a person has accepted: it stays in every report, and does not fail the audit."""

    #: `Entry.id` of the violation; with a hash it must be about the same transaction id, too.
    id: str
    who: str
    why: str
    #: The last day (UTC) on which it is accepted, as 2026-12-31.
    until: str
    id_sha256: str = ""
    #: Whether that day is over.
    is_expired: bool = False

    def __str__(self) -> str:
        return f"{'no longer ' if self.is_expired else ''}accepted by {self.who} until {self.until}: {self.why}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One violation or finding."""

    kind: str
    says: str
    #: First 8 characters of the transaction id; the whole id is the right to decide. None when there is none.
    transaction: str | None = None
    group: str | None = None
    real_topic: str | None = None
    evidence: tuple[Place, ...] = ()
    #: A hash of the whole transaction id, as in the ledger. It finds the row of a known id.
    id_sha256: str | None = None
    #: Append times of its half message, of the decision that won, and of the first OP record of a commit, ms.
    prepared_at: int | None = None
    decided_at: int | None = None
    delivered_at: int | None = None
    #: Of a BY_HAND: the first ones.
    actions: tuple[OperatorAction, ...] = ()
    accepted: Acceptance | None = None

    @property
    def id(self) -> str:
        """Identifies a violation: every audit that finds it gives it the same id."""
        at = self.evidence[0] if self.evidence else None
        # A record of the progress names many rows.
        row = f" {self.transaction}" if at is not None and at.role == "progress" and self.transaction else ""
        return self.kind if at is None else f"{self.kind} {at.topic}/{at.partition}@{at.offset}{row}"

    @property
    def times(self) -> dict[str, int]:
        """The times that are known, by what happened then."""
        found = {"prepared": self.prepared_at, "decided": self.decided_at, "recorded as delivered": self.delivered_at}
        return {what: ms for what, ms in found.items() if ms is not None}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Entry:
        """The entry of `dataclasses.asdict`, also if that was JSON meanwhile."""
        evidence = tuple(Place(**place) for place in told["evidence"])
        actions = tuple(OperatorAction(**action) for action in told.get("actions", ()))
        return cls(**{**told, "evidence": evidence, "actions": actions})


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of entries by kind, and the first ones of each (`summary.VIOLATIONS_LISTED`, `FINDINGS_LISTED`)."""

    by_kind: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Entry, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    @property
    def accepted(self) -> Mapping[str, int]:
        """By kind, the number of listed entries that a person has accepted, until a day that is not over."""
        return Counter(entry.kind for entry in self.listed if entry.accepted and not entry.accepted.is_expired)
