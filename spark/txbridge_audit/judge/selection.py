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
        # All of several messages must be in chosen topics. One in a topic that is not read would seem to be lost.
        return self._is_born_within(message) and (not self.topics or self._topics_of(message) <= self.topics)

    def leaves_out(self, message: HalfMention) -> bool:
        """Whether a transaction is not audited, although some of its messages go to chosen topics."""
        there = self._topics_of(message)
        return self._is_born_within(message) and 0 < len(there & self.topics) < len(there)

    def _is_born_within(self, message: HalfMention) -> bool:
        return (self.since or 0) <= message.born and (self.until is None or message.born < self.until)

    @staticmethod
    def _topics_of(message: HalfMention) -> set[str]:
        return {one.topic for one in message.messages}
