"""The selection of transactions: those born in a range of time, and those of some real topics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditSelection:
    """The transactions that are audited; by default all."""

    #: Born at or after `since` and before `until`; ms since 1970-01-01 UTC.
    since: int | None = None
    until: int | None = None
    #: Real topics; none means all of them.
    topics: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, object]:
        """For the JSON form."""
        return {"since": self.since, "until": self.until, "topics": sorted(self.topics)}
