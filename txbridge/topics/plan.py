"""The plan of `txbridge topics`: existing topics compared with the wanted ones. It never lowers anything. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from txbridge.core.names import Names, is_topic
from txbridge.errors import UsageError
from txbridge.kafka.admin import UNCLEAN, FoundTopic, Sight
from txbridge.kafka.topic_lookup import LARGEST_BATCH, marker_problem
from txbridge.text import counted
from txbridge.topics.spec import (
    BATCH_ROOM,
    COPY_ROOM,
    DEFAULT_MESSAGE,
    HALF_RETENTION_MS,
    HALF_ROOM,
    IN_SYNC,
    LARGEST_MESSAGE,
    LONGEST_OUTAGE_MS,
    RETENTION,
    UNLIMITED,
    Change,
    Deviation,
    PropertyRule,
    Wanted,
    WantedTopic,
    check_topic,
    internal_topics,
    outbox_topic,
)

#: Each half partition has Kafka transactions of its own, so a small service would pay for each. One carries more than
#: 30,000 transactions a second.
_DEFAULT_PARTITIONS = 1
#: Of a real topic. They are cheap, and its consumers can only be as many.
_REAL_PARTITIONS = 4
#: With three copies, records survive the loss of one broker while another is being restarted.
_USUAL_REPLICATION_FACTOR = 3
#: Each half partition costs its worker a transactional producer. A larger number is a typing error.
MOST_PARTITIONS = 10_000


@dataclass(frozen=True, slots=True)
class RealTopic:
    """A real topic that is created if it is missing. Existing ones belong to others. Without a number it gets four."""

    name: str
    partitions: int | None = None

    @classmethod
    def parse(cls, text: str, names: Names, most: int) -> Self:
        """Parse TOPIC or TOPIC:PARTITIONS. Raises UsageError."""
        name, colon, number = text.partition(":")
        if not is_topic(name):
            raise UsageError(f"--real-topic takes TOPIC or TOPIC:PARTITIONS, and {name!r} is not the name of a topic")
        if names.is_forbidden(name):
            raise UsageError(f"--real-topic {name}: no message is ever delivered to a topic of that name")
        if not colon:
            return cls(name)
        if not number.isdecimal() or not 1 <= int(number) <= most:
            raise UsageError(f"--real-topic {name}: the number of partitions must be between 1 and {most}")
        return cls(name, int(number))

    def config_for(self, message_size: int) -> dict[str, str]:
        """Properties of a new topic. A delivered message is its half message with two headers."""
        return {LARGEST_BATCH: str(max(message_size + COPY_ROOM, BATCH_ROOM))}

    def objections_to(self, facts: FoundTopic) -> list[str]:
        found = []
        if self.partitions not in {None, facts.partitions}:
            has = counted(facts.partitions, "partition")
            why = "another number changes where keys go, so it is not changed here (kafka-topics.sh --alter does)"
            found.append(f"has {has}, not {self.partitions}: {why}")
        if (why_not := marker_problem(int(facts.config.get(LARGEST_BATCH, BATCH_ROOM)))) is not None:
            found.append(f"nothing can be delivered to it: {why_not}")
        return found

    def notes_on(self, facts: FoundTopic, message_size: int) -> list[str]:
        found = []
        limit = int(facts.config.get(LARGEST_BATCH, BATCH_ROOM))
        if limit < message_size:
            found.append(f"takes records of up to {limit:,} bytes; a larger message is held when it is committed")
        if facts.elects_unclean:
            found.append(f"{UNCLEAN} is true: delivered messages can be lost")
        return found


class TopicAction(enum.Enum):
    OK = "ok"
    CREATE = "create"
    CHANGE = "change"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Choices of the operator; None = the existing value, else the default. Sizes in bytes, times in ms."""

    partitions: int | None = None
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    max_message_size: int = DEFAULT_MESSAGE
    #: Longest time for which the body of a half message may be needed: the longer of the workers' transaction_max_age
    #: and timer_max_delay.
    longest_wait: int = 0
    #: Producer groups whose check topics are created in advance, because their users may not create topics.
    groups: tuple[str, ...] = ()
    #: Real topics that are created if they are missing.
    real_topics: tuple[RealTopic, ...] = ()
    #: OUTBOX in the place of the other internal topics.
    relay: bool = False

    def __post_init__(self) -> None:
        if self.relay and self.groups:
            raise UsageError("--relay takes no --group: relays have no check topic")
        for name, value, most in (
            ("partitions", self.partitions, MOST_PARTITIONS),
            ("replication-factor", self.replication_factor, 32_767),
            ("min-insync-replicas", self.min_insync_replicas, 32_767),
            ("max-message-size", self.max_message_size, LARGEST_MESSAGE),
        ):
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"--{name} must be between 1 and {most}, not {value}")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The plan for one topic. `reasons` say why it is refused. `notes` are for information only."""

    topic: str
    action: TopicAction
    partitions: int
    replication_factor: int
    changes: tuple[Change, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: Properties that the cluster refuses to set, and without which nothing is lost.
    left_out: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, str]:
        return {change.name: change.new for change in self.changes}


def compare(names: Names, options: PlanOptions, seen: Mapping[str, Sight], brokers: int) -> list[TopicPlan]:
    return [
        *(_compare_topic(one, seen[one.name], options, brokers) for one in wanted_topics(names, options, seen)),
        *(
            _compare_real(one, seen[one.name], options, size_of(options, seen.get(names.half)), brokers)
            for one in options.real_topics
        ),
    ]


def _compare_real(real: RealTopic, sight: Sight, options: PlanOptions, message_size: int, brokers: int) -> TopicPlan:
    """The plan for a real topic: it is created if it is missing, and otherwise left as it is."""
    if isinstance(sight, FoundTopic):
        reasons = tuple(real.objections_to(sight))
        return TopicPlan(
            real.name,
            TopicAction.REFUSED if reasons else TopicAction.OK,
            sight.partitions,
            sight.replication_factor,
            reasons=reasons,
            notes=tuple(real.notes_on(sight, message_size)),
        )
    size = tuple(Wanted(name, PropertyRule.AT_LEAST, value) for name, value in real.config_for(message_size).items())
    wanted = WantedTopic(real.name, size, real.partitions or _REAL_PARTITIONS)
    return _compare_topic(wanted, sight, options, brokers)


def judge(names: Names, options: PlanOptions, seen: Mapping[str, Sight]) -> list[Deviation]:
    """All that is wrong with the topics of these options."""
    return [one for wanted in wanted_topics(names, options, seen) for one in wanted.deviations(seen[wanted.name])]


def wanted_topics(names: Names, options: PlanOptions, seen: Mapping[str, Sight]) -> list[WantedTopic]:
    """The topics as they should be, given the existing ones; no I/O."""
    if options.relay:
        return [outbox_topic(names, options.partitions)]
    half = seen[names.half]
    kept = half.config[RETENTION] if isinstance(half, FoundTopic) else "0"
    there = [one.partitions for topic in names.identified.values() if isinstance(one := seen.get(topic), FoundTopic)]
    partitions = options.partitions or (there[0] if there else _DEFAULT_PARTITIONS)
    # A longer retention of HALF stays, and the other topics follow it.
    longest = max(HALF_RETENTION_MS, options.longest_wait + LONGEST_OUTAGE_MS, int(kept))
    retention = UNLIMITED if kept == UNLIMITED else str(longest)
    size = size_of(options, half)
    return [
        *internal_topics(
            names,
            partitions,
            message_size=size,
            longest_wait=options.longest_wait,
            half_keeps=kept,
            retention_ms=retention,
        ),
        *(check_topic(names, group, message_size=size) for group in options.groups),
    ]


def size_of(options: PlanOptions, half: Sight) -> int:
    """The largest user value (bytes) that was asked for, or that HALF takes if that is more."""
    size = options.max_message_size
    return max(size, int(half.config["max.message.bytes"]) - HALF_ROOM) if isinstance(half, FoundTopic) else size


def _compare_topic(wanted: WantedTopic, sight: Sight, options: PlanOptions, brokers: int) -> TopicPlan:
    usual = options.replication_factor or min(_USUAL_REPLICATION_FACTOR, brokers)
    partitions, copies = wanted.partitions, usual
    if isinstance(sight, FoundTopic):
        partitions, copies = sight.partitions, sight.replication_factor
    wanted = replace(wanted, in_sync=options.min_insync_replicas)
    found = list(wanted.deviations(sight))
    changes = [one.change for one in found if one.change] if sight else wanted.new_properties(copies)
    reasons = [str(one) for one in found if sight and not one.change]
    if any(one.name == IN_SYNC and int(one.new) > copies for one in changes):
        has = counted(copies, "copy", "copies")
        reasons.append(
            f"{IN_SYNC} {options.min_insync_replicas} is more than its {has}: nothing could be written to it"
        )
    fine = TopicAction.CREATE if sight is None else TopicAction.CHANGE if changes else TopicAction.OK
    behind = f"has {copies} of {usual} copies; kafka-reassign-partitions.sh adds the others"
    return TopicPlan(
        wanted.name,
        TopicAction.REFUSED if reasons else fine,
        partitions,
        copies,
        changes=tuple(changes),
        reasons=tuple(reasons),
        notes=(behind,) if copies < usual else (),
    )
