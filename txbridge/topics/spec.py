"""The internal topics as they must be, and what is wrong with one: data and one judge, without I/O.

Clients and workers start only without vital deviations, `txbridge topics` makes the changes, and the doctor reports
all of them. docs/protocol.md and docs/configuration.md have the requirements.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from txbridge.core.names import Names
from txbridge.kafka.admin import UNCLEAN, MissingRight, Sight
from txbridge.kafka.topic_lookup import LARGEST_BATCH
from txbridge.text import counted, duration

#: Bytes that HALF (the first) and discard and CHECK (the second) accept beyond the largest user value: key, headers,
#: and the headers that we add.
HALF_ROOM = 64 * 1024
COPY_ROOM = 128 * 1024
#: Our producers send batches of up to 1,000,000 bytes, and the broker judges a batch by max.message.bytes. Half
#: messages are the exception: their producer keeps its batches below the limit of HALF.
BATCH_ROOM = 1024 * 1024
#: librdkafka's largest message.max.bytes, less the bytes that a copy adds.
LARGEST_MESSAGE = 1_000_000_000 - COPY_ROOM
DEFAULT_MESSAGE = 1_000_000

RETENTION = "retention.ms"
IN_SYNC = "min.insync.replicas"
_POLICY = "cleanup.policy"
_SEGMENT = "segment.bytes"
UNLIMITED = "-1"

_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS
#: HALF keeps messages for this time beyond `transaction_max_age` and `timer_max_delay`, so that they survive an outage.
LONGEST_OUTAGE_MS = 4 * _DAY_MS
HALF_RETENTION_MS = 7 * _DAY_MS
#: Checks older than this are of no use: the next one was sent long before.
CHECK_RETENTION_MS = 60 * _MINUTE_MS
#: Time for which a discarded message can be resumed.
DISCARD_RETENTION_MS = 30 * _DAY_MS
#: Kafka deletes whole segments, `retention.ms` after their last record. By its default of seven days a record could
#: stay for so long beyond its time. Ten minutes is the least that providers of Kafka allow.
_SEGMENT_MS = _DAY_MS
_CHECK_SEGMENT_MS = 10 * _MINUTE_MS
#: Kafka's default.
_SEGMENT_BYTES = str(1024**3)

#: Discards are rare, and in one partition they are in order.
_DISCARD_PARTITIONS = 1
#: An outbox has one of them. A relay that is paused in a transaction delays the start of those of the same partition.
_OUTBOX_PARTITIONS = 8
#: Number of processes of a producer group that can be asked in parallel.
_CHECK_PARTITIONS = 4


class PropertyRule(enum.Enum):
    """The rule by which a property is judged. A value that is better than wanted is left alone."""

    IS = "must be"
    AT_LEAST = "must be at least"
    AT_MOST = "must be at most"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One property of a topic. A topic that misses a `vital` one loses messages or cannot work.

    `why` says what happens otherwise. `new` is the value to set, if not the bound itself.
    """

    name: str
    rule: PropertyRule
    value: str
    vital: bool = True
    why: str = ""
    new: str = ""

    def is_met(self, actual: str | None) -> bool:
        if actual is None:
            return False
        if self.rule is PropertyRule.IS:
            return actual == self.value
        if self.name == RETENTION and UNLIMITED in {actual, self.value}:
            return actual == UNLIMITED
        if self.rule is PropertyRule.AT_LEAST:
            return float(actual) >= float(self.value)
        return float(actual) <= float(self.value)

    def complaint_about(self, actual: str | None) -> str:
        must = "must be" if self.value == UNLIMITED else self.rule.value
        complaint = f"{self.name} is {self._shown(actual)}, {must} {self._shown(self.value)}"
        return f"{complaint}, or {self.why}" if self.why else complaint

    def _shown(self, value: str | None) -> str:
        if value == UNLIMITED:
            return f"{value} (unlimited)"
        return f"{value} ({duration(int(value))})" if value and self.name.endswith(".ms") else str(value)

    def change_from(self, old: str | None) -> Change:
        return Change(self.name, old, self.new or self.value, self.vital)


@dataclass(frozen=True, slots=True)
class Change:
    """A property to set: from `old` (None when the topic is to be created) to `new`.

    One that is not vital is left out where the cluster refuses it.
    """

    name: str
    old: str | None
    new: str
    vital: bool = True


@dataclass(frozen=True, slots=True)
class Deviation:
    """What is wrong with a topic, and the remedy."""

    topic: str
    problem: str
    remedy: str
    #: The repair by `txbridge topics apply`. None if the topic is to be created, or if a person has to act.
    change: Change | None = None

    @property
    def vital(self) -> bool:
        return self.change is None or self.change.vital

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic that must exist."""

    name: str
    properties: tuple[Wanted, ...]
    #: Of a new topic.
    partitions: int
    #: The command that creates the topic and sets its properties.
    apply: str = ""
    #: Whether an existing topic must have that number of partitions, too.
    aligned: bool = False
    #: min.insync.replicas. None: one less than there are copies, so that one may be lost and the topic takes writes.
    in_sync: int | None = None

    def deviations(self, sight: Sight) -> Iterator[Deviation]:
        """Everything that is wrong with the topic: the one judge of topics."""
        if sight is None:
            yield Deviation(self.name, "does not exist", f"{self.apply} creates it")
        elif isinstance(sight, MissingRight):
            yield Deviation(self.name, sight.text, sight.remedy)
        else:
            if self.aligned and sight.partitions != self.partitions:
                yield self._other_partitions(sight.partitions)
            for wanted in self._unmet_properties(sight.config, sight.replication_factor):
                yield self._deviation(wanted, sight.config.get(wanted.name))

    def new_properties(self, copies: int) -> list[Change]:
        """The properties of a new topic with so many copies."""
        return [one.change_from(None) for one in self._unmet_properties({}, copies)]

    def _unmet_properties(self, config: Mapping[str, str], copies: int) -> list[Wanted]:
        """The first unmet one of each name."""
        least, lost = str(self.in_sync or max(1, copies - 1)), "what one broker has can be lost with it"
        every = (
            *self.properties,
            Wanted(IN_SYNC, PropertyRule.AT_MOST, str(copies), why="nothing can be written to it", new=least),
            Wanted(IN_SYNC, PropertyRule.AT_LEAST, least, vital=False, why=lost),
        )
        unmet = {one.name: one for one in reversed(every) if not one.is_met(config.get(one.name))}
        return [one for one in every if unmet.get(one.name) is one]

    def _other_partitions(self, count: int) -> Deviation:
        return Deviation(
            self.name,
            f"has {counted(count, 'partition')}, must have {self.partitions}: HALF, END, OP and OFFSET have the same "
            "number, fixed for the life of a namespace, because partitions with the same number belong together",
            "ask for the number that is there, or use a new namespace; or, if nothing in the topic is needed, delete "
            f"it and run {self.apply}",
        )

    def _deviation(self, wanted: Wanted, actual: str | None) -> Deviation:
        complaint = wanted.complaint_about(actual)
        if wanted.name == _POLICY:
            # txbridge does not change it, because records may be missing already.
            remedy = f"if nothing in {self.name} is needed, delete it and run {self.apply}"
            return Deviation(self.name, complaint, f"{remedy}; else set the policy yourself (kafka-configs.sh)")
        where = "" if wanted.vital else ", if the cluster allows it"
        return Deviation(self.name, complaint, f"{self.apply} sets it{where}", wanted.change_from(actual))


_GONE = "records that are needed are removed"
_SLOW = "take-overs read more"
#: A user's old timestamp must not make a pending message old.
_STAMP = Wanted("message.timestamp.type", PropertyRule.IS, "LogAppendTime")
_CLEAN = Wanted(UNCLEAN, PropertyRule.IS, "false", vital=False, why="an election loses messages and decisions")
#: For topics that clients write. The broker unpacks each batch, and refuses what is then larger than max.message.bytes:
#: else a batch of 3 kB that unpacks to 90 MB stops all readers. Faust's client cannot unpack each compression either.
_UNCOMPRESSED = Wanted(
    "compression.type",
    PropertyRule.IS,
    "uncompressed",
    vital=False,
    why="a small record that unpacks to a huge one stops a partition, and commits can be a second late",
)
#: Every take-over reads OFFSET from its start, so it is kept short.
_SHORT = (
    Wanted(_POLICY, PropertyRule.IS, "compact", why=_GONE),
    _STAMP,
    Wanted(LARGEST_BATCH, PropertyRule.AT_LEAST, str(BATCH_ROOM)),
    Wanted(_SEGMENT, PropertyRule.AT_MOST, str(16 * 1024 * 1024), vital=False, why=_SLOW),
    Wanted("min.cleanable.dirty.ratio", PropertyRule.AT_MOST, "0.1", vital=False, why=_SLOW),
    Wanted("min.compaction.lag.ms", PropertyRule.AT_MOST, "0", vital=False, why=_SLOW),
    Wanted("delete.retention.ms", PropertyRule.AT_LEAST, str(_DAY_MS), vital=False),
    _CLEAN,
)


def apply_command(names: Names, *options: str) -> str:
    """The command that makes the topics of the namespace as they must be."""
    namespace = ["--namespace", names.namespace] if names.namespace else []
    return f"`{' '.join(['txbridge topics apply', *namespace, *options])}`"


def internal_topics(
    names: Names, partitions: int, *, message_size: int, longest_wait: int, half_keeps: str, retention_ms: str
) -> list[WantedTopic]:
    """HALF, END, OP, OFFSET and discard, for values of this size (bytes), and messages that wait for so long (ms).

    `half_keeps` is the retention of HALF now, `retention_ms` the one that it is to have. END and OP follow it: without
    its decision, a half message in HALF would be checked again.
    """
    waits = f"messages vanish that wait for {duration(longest_wait)} (transaction_max_age, timer_max_delay)"
    outage = f"an outage of {duration(LONGEST_OUTAGE_MS)} loses messages"
    again = "finished messages are asked about, and could be delivered, again"
    half = (
        Wanted(RETENTION, PropertyRule.AT_LEAST, str(longest_wait), why=waits, new=retention_ms),
        Wanted(RETENTION, PropertyRule.AT_LEAST, retention_ms, vital=False, why=outage),
    )
    history = (
        Wanted(RETENTION, PropertyRule.AT_LEAST, half_keeps, why=again, new=retention_ms),
        Wanted(RETENTION, PropertyRule.AT_LEAST, retention_ms, vital=False, why="it is shorter than that of HALF"),
    )
    discard, apply = _copies(message_size, DISCARD_RETENTION_MS, _SEGMENT_MS), apply_command(names)
    return [
        WantedTopic(
            names.half, (*_log(half, message_size + HALF_ROOM), _UNCOMPRESSED), partitions, apply, aligned=True
        ),
        WantedTopic(names.end, (*_log(history, BATCH_ROOM), _UNCOMPRESSED), partitions, apply, aligned=True),
        WantedTopic(names.op, _log(history, BATCH_ROOM), partitions, apply, aligned=True),
        WantedTopic(names.offset, _SHORT, partitions, apply, aligned=True),
        WantedTopic(names.discard, discard, _DISCARD_PARTITIONS, apply),
    ]


def check_topic(names: Names, group: str, *, message_size: int) -> WantedTopic:
    log = _copies(message_size, CHECK_RETENTION_MS, _CHECK_SEGMENT_MS)
    return WantedTopic(names.check(group), log, _CHECK_PARTITIONS, apply_command(names, "--group", group))


def outbox_topic(names: Names, partitions: int | None) -> WantedTopic:
    """OUTBOX, the progress of relays, kept as long as HALF. A new one gets so many partitions, by default 8."""
    late = "a relay that comes back later does not know what it has sent"
    keep = Wanted(RETENTION, PropertyRule.AT_LEAST, str(HALF_RETENTION_MS), vital=False, why=late)
    apply = apply_command(names, "--relay")
    return WantedTopic(names.outbox, _log((keep,), BATCH_ROOM), partitions or _OUTBOX_PARTITIONS, apply)


def _copies(message_size: int, retention_ms: int, segment_ms: int) -> tuple[Wanted, ...]:
    keep = Wanted(RETENTION, PropertyRule.AT_LEAST, str(retention_ms), vital=False, why="records are deleted too early")
    return _log((keep,), max(message_size + COPY_ROOM, BATCH_ROOM), segment_ms)


def _log(keep: tuple[Wanted, ...], largest: int, segment_ms: int = _SEGMENT_MS) -> tuple[Wanted, ...]:
    """Properties of a log that loses nothing before its time, and keeps nothing for long after it."""
    refused = "Kafka refuses a batch that is larger than a segment"
    longer = f"records stay so much longer than {RETENTION} says"
    return (
        Wanted(_POLICY, PropertyRule.IS, "delete", why=_GONE),
        *keep,
        Wanted("retention.bytes", PropertyRule.IS, UNLIMITED),
        _STAMP,
        Wanted(LARGEST_BATCH, PropertyRule.AT_LEAST, str(largest)),
        Wanted(_SEGMENT, PropertyRule.AT_LEAST, str(largest), vital=False, why=refused, new=_SEGMENT_BYTES),
        Wanted("segment.ms", PropertyRule.AT_MOST, str(segment_ms), vital=False, why=longer),
        _CLEAN,
    )
