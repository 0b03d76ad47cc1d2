"""Everything besides a transaction's own mentions that its verdict depends on.

Cuts, log starts, policies, limits and the time come from the cluster. Proofs and twins come from all transactions
together (`evidence.py`): an engine gathers them first, and judges then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txbridge_audit.judge.lacking import CHECKS_KEPT_MS
from txbridge_audit.judge.lazy import lazy
from txbridge_audit.protocol.mentions import HalfMention
from txbridge_audit.protocol.relay_records import Numbering

#: (topic, partition)
TopicPartition = tuple[str, int]

#: Greatest difference between two clocks, ms. One case is two brokers, where retention has removed a beginning of END,
#: OP or discard. Half messages born this long after the oldest record left there count as having lost no trace. The
#: other case is a broker or worker and this machine, where something is overdue.
CLOCK_MARGIN_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class HalfFacts:
    """Facts about one half partition."""

    partition: int
    #: Offset from which HALF is read. Coordinates below it are not judged.
    half_start: int
    #: `end` and `half` of the last checkpoint; None when there is none.
    applied_to: int | None = None
    low: int | None = None
    #: Times (ms). For half messages born later, END still holds all entries, OP all outcomes, the discard topic all of
    #: its records, OFFSET all parked entries. -1: none was ever removed.
    ends_since: int = -1
    outcomes_since: int = -1
    discards_since: int = -1
    parked_since: int = -1
    #: OFFSET names no checkpoint, although workers have written here.
    checkpoint_gone: bool = False
    #: Whether every Kafka transaction in the OFFSET cut is decided in the OP cut.
    op_settled: bool = True
    #: Log start of HALF. Records below it are gone.
    log_start: int = 0
    #: `entry` of the last checkpoint: this many entries of the END record at `applied_to` are applied, too.
    applied_entry: int = 0


@dataclass(frozen=True, slots=True)
class RealTopicFacts:
    """Facts about one real topic that exists."""

    topic: str
    #: Whether compaction may remove records. True also when we may not see the policy.
    compacted: bool = False
    #: Whether retention or DeleteRecords has removed a beginning of at least one partition.
    truncated: bool = False
    #: Whether every Kafka transaction in the OP cut is decided in the later cut.
    settled: bool = True
    #: Whether we may see the policy.
    policy_known: bool = True


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """The workers' settings on which a verdict depends. The defaults are the worker's."""

    #: Checks after which an undecided message is discarded.
    transaction_check_max: int = 15
    #: Age at which an undecided message is discarded, ms.
    transaction_max_age: int = 72 * 3_600_000


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


class LossProof(NamedTuple):
    """From where on a record that is missing in a real topic is proved to be lost."""

    #: Above this offset in OP, and this append time there (ms).
    op: int
    stamp: int


class LossProofs(Protocol):
    """The proofs that committed records which are missing from their real topic were lost (`evidence.py`)."""

    def get(self, place: tuple[int, str], /) -> LossProof | None:
        """The proof about records of a half partition in a real topic; None when nothing proves a loss."""


@dataclass(frozen=True)
class Facts:
    """All facts besides the mentions of a transaction."""

    partitions: Iterable[HalfFacts]
    topics: Iterable[RealTopicFacts]
    #: The earlier cut of the real topics.
    before: Mapping[TopicPartition, int]
    #: When the audit began, ms. Broker clocks may differ from ours by CLOCK_MARGIN_MS.
    now: int = 0
    limits: AuditLimits = dataclasses.field(default_factory=AuditLimits)
    #: When the topics were read, ms: later than `now` if an earlier audit is made again.
    read_at: int = 0
    #: By group that has a check topic, a time (ms): check requests that were sent later are all still there. -1: none
    #: was removed. None: check topics were not looked for.
    checks_since: Mapping[str, int] | None = None
    #: Whether the discard topic has lost its beginning.
    discards_cut: bool = False
    proofs: LossProofs = dataclasses.field(default_factory=dict[tuple[int, str], LossProof])
    #: By half partition and transaction id, half messages with this id that OP names as discarded, and that no record
    #: of the discard topic explains. Each may be a copy of another one with its id.
    unexplained: Mapping[tuple[int, str], Collection[int]] = dataclasses.field(default_factory=dict)
    #: By writer (protocol/relay_records.py), what the progress of its outbox tells.
    relays: Mapping[int, Numbering] = dataclasses.field(default_factory=dict)
    #: Whether every Kafka transaction in the earlier cut of the real topics is decided in the cut of OUTBOX.
    are_relays_settled: bool = True
    #: The real topics that are read; none means all that are named.
    only_topics: Collection[str] = ()

    @property
    def checks_kept_since(self) -> int:
        """The time (ms) since which the protocol keeps check requests. The loss of older ones is no fault."""
        return max(self.now, self.read_at) - CHECKS_KEPT_MS

    @lazy
    def _by_partition(self) -> Mapping[int, HalfFacts]:
        return {fact.partition: fact for fact in self.partitions}

    @lazy
    def _by_topic(self) -> Mapping[str, RealTopicFacts]:
        return {fact.topic: fact for fact in self.topics}

    def half(self, partition: int) -> HalfFacts:
        """The facts about a half partition. A record may name one that HALF does not have: nothing is known of it."""
        return self._by_partition.get(partition) or HalfFacts(partition, half_start=0)

    def topic(self, name: str | None) -> RealTopicFacts | None:
        """The facts about a real topic; None when it does not exist."""
        return None if name is None else self._by_topic.get(name)
