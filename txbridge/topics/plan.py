"""The plan of `txbridge topics`: existing topics compared with the wanted ones. It never lowers anything. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge.kafka.admin import UNCLEAN, FoundTopic, MissingRight, Sight
from txbridge.text import counted
from txbridge.topics.real import RealTopic
from txbridge.topics.spec import (
    DEFAULT_MESSAGE,
    HALF_RETENTION_MS,
    HALF_ROOM,
    LARGEST_MESSAGE,
    LONGEST_OUTAGE_MS,
    WantedTopic,
    check_topic,
    discard_topic,
    half_topic,
    history_topics,
    late_resume,
    longer_retention,
    offset_topic,
)
from txbridge.topics.verify import repair_of_policy

#: Each half partition has Kafka transactions of its own, so a small service would pay for each. One carries more than
#: 30,000 transactions a second.
_DEFAULT_PARTITIONS = 1
#: Of a real topic. They are cheap, and its consumers can only be as many.
_REAL_PARTITIONS = 4
#: With three copies, records survive the loss of one broker while another is being restarted.
_USUAL_REPLICATION_FACTOR = 3
#: Each half partition costs its worker a transactional producer. A larger number is a typing error.
MOST_PARTITIONS = 10_000


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
    transaction_max_age: int = 0
    timer_max_delay: int = 0
    #: Producer groups whose check topics are created in advance, because their users may not create topics.
    groups: tuple[str, ...] = ()
    #: Real topics that are created if they are missing.
    real_topics: tuple[RealTopic, ...] = ()

    def __post_init__(self) -> None:
        for name, value, most in (
            ("partitions", self.partitions, MOST_PARTITIONS),
            ("replication-factor", self.replication_factor, 32_767),
            ("min-insync-replicas", self.min_insync_replicas, 32_767),
            ("max-message-size", self.max_message_size, LARGEST_MESSAGE),
        ):
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"--{name} must be between 1 and {most}, not {value}")


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
    aligned = [names.half, names.end, names.op, names.offset]
    there = [sight.partitions for topic in aligned if isinstance(sight := seen[topic], FoundTopic)]
    partitions = options.partitions or (there[0] if there else _DEFAULT_PARTITIONS)
    wanted = wanted_topics(names, options, seen)
    planned = [_compare_topic(one, seen[one.name], options, partitions, brokers) for one in wanted]
    # The retention of HALF is not known if this user may not see it.
    late = (
        None
        if isinstance(seen[names.half], MissingRight)
        else late_resume(
            names,
            half_retention_ms=_half_retention(options, seen[names.half]),
            transaction_max_age=options.transaction_max_age,
        )
    )
    if late is not None:
        planned = [replace(one, notes=(*one.notes, late)) if one.topic == names.discard else one for one in planned]
    return [
        *planned,
        *(
            _compare_real(one, seen[one.name], options, size_of(options, seen[names.half]), brokers)
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
    partitions = real.partitions or _REAL_PARTITIONS
    made = _compare_topic(WantedTopic(real.name, (), partitions), sight, options, partitions, brokers)
    changes = [Change(name, None, value) for name, value in real.config_for(message_size).items()]
    return replace(made, changes=(*changes, *made.changes)) if sight is None else made


def wanted_topics(names: Names, options: PlanOptions, seen: Mapping[str, Sight]) -> list[WantedTopic]:
    """The topics as they should be, given the existing ones; no I/O."""
    half = seen[names.half]
    retention = _half_retention(options, half)
    size = size_of(options, half)
    return [
        half_topic(names, message_size=size, retention_ms=retention),
        *history_topics(names, half_retention_ms=retention),
        offset_topic(names),
        discard_topic(names, message_size=size),
        *(check_topic(names, group, message_size=size) for group in options.groups),
    ]


def _half_retention(options: PlanOptions, half: Sight) -> str:
    """Retention of HALF. A longer existing one stays, and the other topics follow it."""
    longest_wait = max(options.transaction_max_age, options.timer_max_delay)
    retention = str(max(HALF_RETENTION_MS, longest_wait + LONGEST_OUTAGE_MS))
    return longer_retention(retention, half.config["retention.ms"]) if isinstance(half, FoundTopic) else retention


def size_of(options: PlanOptions, half: Sight) -> int:
    """The largest user value (bytes) that was asked for, or that HALF takes if that is more."""
    size = options.max_message_size
    return max(size, int(half.config["max.message.bytes"]) - HALF_ROOM) if isinstance(half, FoundTopic) else size


def _compare_topic(
    wanted: WantedTopic,
    sight: Sight,
    options: PlanOptions,
    partitions: int,
    brokers: int,
) -> TopicPlan:
    copies = options.replication_factor or min(_USUAL_REPLICATION_FACTOR, brokers)
    count = wanted.partitions or partitions
    if isinstance(sight, MissingRight):
        return TopicPlan(wanted.name, TopicAction.REFUSED, count, copies, reasons=(str(sight),))
    if isinstance(sight, FoundTopic):
        return _compare_facts(wanted, sight, options, partitions, copies)
    in_sync = options.min_insync_replicas or max(1, copies - 1)
    changes = [*(Change(prop.name, None, prop.value, prop.vital) for prop in wanted.properties)]
    changes.append(Change("min.insync.replicas", None, str(in_sync)))
    refused = _too_many_in_sync(in_sync, copies)
    return TopicPlan(
        wanted.name,
        TopicAction.REFUSED if refused else TopicAction.CREATE,
        count,
        copies,
        changes=tuple(changes),
        reasons=refused,
    )


def _compare_facts(
    wanted: WantedTopic,
    facts: FoundTopic,
    options: PlanOptions,
    partitions: int,
    copies: int,
) -> TopicPlan:
    reasons: list[str] = []
    notes: list[str] = []
    changes: list[Change] = []
    if wanted.partitions is None and facts.partitions != partitions:
        reasons.append(
            f"has {counted(facts.partitions, 'partition')}, must have {partitions}: all four topics have the same "
            "number, fixed for the life of a namespace, because partitions with the same number belong together. To "
            "grow, use a new namespace and drain this one; to keep this one, ask for the number that is there",
        )
    for prop in wanted.unmet_properties(facts.config):
        actual = facts.config.get(prop.name)
        if prop.name == "cleanup.policy":
            reasons.append(repair_of_policy(wanted.name, actual, prop.value))
        else:
            changes.append(Change(prop.name, actual, prop.value, prop.vital))
    in_sync = options.min_insync_replicas or max(1, facts.replication_factor - 1)
    actual_in_sync = facts.config.get("min.insync.replicas", "1")
    if int(actual_in_sync) < in_sync:
        reasons += _too_many_in_sync(in_sync, facts.replication_factor)
        changes.append(Change("min.insync.replicas", actual_in_sync, str(in_sync)))
    if facts.replication_factor < copies:
        notes.append(
            f"has {facts.replication_factor} of {copies} copies; kafka-reassign-partitions.sh adds the others",
        )
    if facts.elects_unclean:
        notes.append(
            f"{UNCLEAN} is true: acknowledged messages and decisions can be lost. Set it to false "
            "(kafka-configs.sh), here or on the brokers",
        )
    action = TopicAction.REFUSED if reasons else TopicAction.CHANGE if changes else TopicAction.OK
    return TopicPlan(
        wanted.name,
        action,
        facts.partitions,
        facts.replication_factor,
        changes=tuple(changes),
        reasons=tuple(reasons),
        notes=tuple(notes),
    )


def _too_many_in_sync(in_sync: int, copies: int) -> tuple[str, ...]:
    if in_sync <= copies:
        return ()
    has = counted(copies, "copy", "copies")
    return (f"min.insync.replicas {in_sync} is more than its {has}: nothing could be written to it",)
