"""The selection of transactions: those born in a range of time, and those of some real topics."""

from __future__ import annotations

from dataclasses import dataclass

from txbridge_audit.protocol.mentions import HalfMention


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

    def takes(self, message: HalfMention | None) -> bool:
        """Whether a transaction is audited. One without a valid half message is, too."""
        if message is None:
            return True
        if self.since is not None and message.born < self.since:
            return False
        if self.until is not None and message.born >= self.until:
            return False
        # All of several messages must be in chosen topics. One in a topic that is not read would seem to be lost.
        return not self.topics or {one.topic for one in message.messages} <= self.topics
