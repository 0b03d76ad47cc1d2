"""A transaction: the mentions of one half message, and how they find each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from txbridge.core.names import Names
from txbridge_audit.protocol.mentions import (
    AsideMention,
    CheckMention,
    CopyMention,
    DiscardMention,
    EndMention,
    HalfMention,
    Mention,
    NamedMention,
    OutcomeMention,
    ParkedMention,
    RowMention,
    UnreadableMention,
)


@dataclass(slots=True)
class AuditedTransaction:
    """The mentions at one pair of half coordinates, in any order. `half` is None for those that name no offset.

    Coordinates that are mentioned although no half message is there are a transaction without one.
    """

    partition: int
    half: int | None
    halves: list[HalfMention] = field(default_factory=list)
    ends: list[EndMention] = field(default_factory=list)
    outcomes: list[OutcomeMention] = field(default_factory=list)
    copies: list[CopyMention] = field(default_factory=list)
    parked: list[ParkedMention] = field(default_factory=list)
    checks: list[CheckMention] = field(default_factory=list)
    discards: list[DiscardMention] = field(default_factory=list)
    #: Records of the discard topic that say that this half message is malformed, or a copy.
    asides: list[AsideMention] = field(default_factory=list)
    #: What there is of a relay's row, which has no half message.
    named: list[NamedMention] = field(default_factory=list)
    rows: list[RowMention] = field(default_factory=list)

    def add(self, mention: Mention) -> None:
        """Add a mention of this half message."""
        getattr(self, _LIST_OF[type(mention)]).append(mention)


_LIST_OF: dict[type[Mention], str] = {
    HalfMention: "halves",
    EndMention: "ends",
    OutcomeMention: "outcomes",
    CopyMention: "copies",
    ParkedMention: "parked",
    CheckMention: "checks",
    DiscardMention: "discards",
    AsideMention: "asides",
    NamedMention: "named",
    RowMention: "rows",
}


def transaction_of(mentions: Sequence[Mention]) -> AuditedTransaction:
    """The transaction of mentions that name the same half coordinates."""
    transaction = AuditedTransaction(mentions[0].partition, mentions[0].half)
    for mention in mentions:
        transaction.add(mention)
    return transaction


@dataclass(slots=True)
class SetAside:
    """The records of HALF and END that the worker has found malformed or to be copies, by the discard topic.

    An entry of END that names a copy decides the first half message. That is sound because the discard topic has the
    copy at the latest with the Kafka transaction that applies an END naming it.
    """

    names: Names
    #: END records (half partition and offset) that have no effect.
    ends: set[tuple[int, int]] = field(default_factory=set)
    #: By coordinates of a copy, the offset of the first.
    firsts: dict[tuple[int, int], int] = field(default_factory=dict)

    def add_record(self, aside: AsideMention) -> None:
        """Remember what a record of the discard topic says."""
        place = aside.partition, aside.half
        if aside.source_topic == self.names.end:
            self.ends.add(place)
        if aside.first is not None:
            self.firsts[place] = min(aside.first, self.firsts.get(place, aside.first))

    def mentions_that_count(self, mentions: Iterable[EndMention | UnreadableMention]) -> Iterable[Mention]:
        """The entries that count, at the coordinates of the half message that they decide; and what cannot be read."""
        for mention in mentions:
            first = None if mention.half is None else self.firsts.get((mention.partition, mention.half))
            if isinstance(mention, UnreadableMention) or (mention.partition, mention.at) not in self.ends:
                yield mention if first is None else replace(mention, half=first)
