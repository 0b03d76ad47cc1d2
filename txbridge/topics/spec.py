"""Requirements for the internal topics, as data, without I/O. docs/protocol.md and docs/configuration.md have them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from txbridge.core.names import Names
from txbridge.text import duration

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

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
#: HALF keeps messages for this time beyond `transaction_max_age` and `timer_max_delay`, so that they survive an outage.
LONGEST_OUTAGE_MS = 4 * _DAY_MS
HALF_RETENTION_MS = 7 * _DAY_MS
#: Checks older than this are of no use: the next one was sent long before.
CHECK_RETENTION_MS = _HOUR_MS
#: Time for which a discarded message can be resumed.
DISCARD_RETENTION_MS = 30 * _DAY_MS

#: Discards are rare, and in one partition they are in order.
_DISCARD_PARTITIONS = 1
#: Number of processes of a producer group that can be asked in parallel.
_CHECK_PARTITIONS = 4

_UNLIMITED = "-1"


class PropertyRule(enum.Enum):
    """The rule by which a property is judged. A value that is better than wanted is left alone."""

    IS = "must be"
    AT_LEAST = "must be at least"
    AT_MOST = "must be at most"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One property of a topic. A topic that misses a `vital` one loses messages or cannot work."""

    name: str
    rule: PropertyRule
    value: str
    vital: bool = True

    def is_met(self, actual: str | None) -> bool:
        if actual is None:
            return False
        if self.rule is PropertyRule.IS:
            return actual == self.value
        if self.name == "retention.ms" and _UNLIMITED in {actual, self.value}:
            return actual == _UNLIMITED
        if self.rule is PropertyRule.AT_LEAST:
            return float(actual) >= float(self.value)
        return float(actual) <= float(self.value)

    def complaint_about(self, actual: str | None) -> str:
        wanted = f"must be {_UNLIMITED} (unlimited)" if self.value == _UNLIMITED else f"{self.rule.value} {self.value}"
        return f"{self.name} is {actual}, {wanted}"


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic that must exist.

    `partitions`: the number for a new topic; an existing one may have any. None: as many as HALF.
    """

    name: str
    properties: tuple[Wanted, ...]
    partitions: int | None = None

    def unmet_properties(self, config: Mapping[str, str]) -> list[Wanted]:
        return [wanted for wanted in self.properties if not wanted.is_met(config.get(wanted.name))]


def longer_retention(one: str, other: str) -> str:
    return _UNLIMITED if _UNLIMITED in {one, other} else str(max(int(one), int(other)))


def late_resume(names: Names, *, half_retention_ms: str, transaction_max_age: int) -> str | None:
    """Consequence and remedy if discarded messages can be resumed for longer than HALF keeps their bodies."""
    # A message may be discarded at its greatest age, but its time in HALF counts from its birth.
    enough = DISCARD_RETENTION_MS + transaction_max_age
    if half_retention_ms == _UNLIMITED or int(half_retention_ms) >= enough:
        return None
    return (
        f"discarded messages can be resumed for {duration(DISCARD_RETENTION_MS)}, but {names.half} keeps their bodies "
        f"for {duration(int(half_retention_ms))} after their birth: a message that is resumed later cannot be "
        f"delivered, and its commit has to be abandoned. Resume in time; or set retention.ms of {names.half} to "
        f"{enough} (kafka-configs.sh) and run `txbridge topics apply`, which raises END and OP as well"
    )


def half_topic(names: Names, *, message_size: int, retention_ms: str) -> WantedTopic:
    size = Wanted("max.message.bytes", PropertyRule.AT_LEAST, str(message_size + HALF_ROOM))
    return WantedTopic(names.half, (*_log(retention_ms), size))


def history_topics(names: Names, *, half_retention_ms: str) -> tuple[WantedTopic, WantedTopic]:
    """END and OP, kept as long as HALF. Without its decision, a half message in HALF would be checked again."""
    properties = (*_log(half_retention_ms), Wanted("max.message.bytes", PropertyRule.AT_LEAST, str(BATCH_ROOM)))
    return WantedTopic(names.end, properties), WantedTopic(names.op, properties)


def offset_topic(names: Names) -> WantedTopic:
    """OFFSET, which every take-over reads from its start, and which is therefore kept short."""
    return WantedTopic(
        names.offset,
        (
            Wanted("cleanup.policy", PropertyRule.IS, "compact"),
            Wanted("message.timestamp.type", PropertyRule.IS, "LogAppendTime"),
            Wanted("max.message.bytes", PropertyRule.AT_LEAST, str(BATCH_ROOM)),
            Wanted("segment.bytes", PropertyRule.AT_MOST, str(16 * 1024 * 1024), vital=False),
            Wanted("min.cleanable.dirty.ratio", PropertyRule.AT_MOST, "0.1", vital=False),
            Wanted("delete.retention.ms", PropertyRule.AT_LEAST, str(_DAY_MS), vital=False),
        ),
    )


def discard_topic(names: Names, *, message_size: int) -> WantedTopic:
    return _copies(names.discard, message_size, DISCARD_RETENTION_MS, _DISCARD_PARTITIONS)


def check_topic(names: Names, group: str, *, message_size: int) -> WantedTopic:
    return _copies(names.check(group), message_size, CHECK_RETENTION_MS, _CHECK_PARTITIONS)


def _copies(name: str, message_size: int, retention_ms: int, partitions: int) -> WantedTopic:
    keep = Wanted("retention.ms", PropertyRule.AT_LEAST, str(retention_ms), vital=False)
    size = Wanted("max.message.bytes", PropertyRule.AT_LEAST, str(max(message_size + COPY_ROOM, BATCH_ROOM)))
    policy, _, unbounded, stamp = _log("")
    return WantedTopic(name, (policy, keep, unbounded, stamp, size), partitions)


def _log(retention_ms: str) -> tuple[Wanted, Wanted, Wanted, Wanted]:
    """Properties of a log that loses nothing before its time.

    LogAppendTime, because a user's old timestamp must not make a pending message old.
    """
    return (
        Wanted("cleanup.policy", PropertyRule.IS, "delete"),
        Wanted("retention.ms", PropertyRule.AT_LEAST, retention_ms),
        Wanted("retention.bytes", PropertyRule.IS, _UNLIMITED),
        Wanted("message.timestamp.type", PropertyRule.IS, "LogAppendTime"),
    )
