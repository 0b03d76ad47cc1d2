"""Findings about workers, producers, and the messages that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError

from txbridge.core.names import topics_of
from txbridge.core.states import TransactionState
from txbridge.doctor.cluster_view import ClusterView
from txbridge.doctor.finding import Check, Finding, note, ok, problem, unknown, warning
from txbridge.errors import TxBridgeError
from txbridge.operations.causes import REMEDIES, START_IT, is_overdue
from txbridge.operations.connection import Connection
from txbridge.operations.listing import with_keys
from txbridge.operations.reading import try_read_views
from txbridge.operations.view import PartitionView
from txbridge.text import counted, duration

#: Most half messages of a partition that are read for their barrier tables.
_MOST_BODIES = 100


def workers(view: ClusterView, groups: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about the members of the workers' group, and about partitions without an owner."""
    app_id, end = view.settings.app_id, view.names.end
    group = groups[app_id]
    if isinstance(group, KafkaError):
        yield unknown(Check.WORKERS, f"the group {app_id} cannot be described: {group.name()}", _grant("group", app_id))
        return
    if not group.members:
        yield problem(
            Check.WORKERS,
            f"no worker is alive (the group {app_id} has no member): nothing is delivered or checked",
            "start `txbridge worker`; with an app_id of its own give it here, too (--app-id)",
        )
        return
    had = {
        member: {one.partition for one in member.assignment.topic_partitions if one.topic == end}
        for member in group.members
    }
    idle = sum(not partitions for partitions in had.values())
    missing = sorted(set(range(view.partitions)) - set().union(*had.values()))
    text = f"{len(had)} alive ({', '.join(sorted({member.host for member in had}))})"
    if group.state != ConsumerGroupState.STABLE:
        yield note(Check.WORKERS, f"{text}; the group is rebalancing", "look again in some seconds")
    elif missing:
        yield problem(
            Check.WORKERS,
            f"{text}, but nobody has partitions {', '.join(map(str, missing))} of {end}",
            "look at the workers' logs: has one just been lost, or do they see another cluster?",
        )
    elif idle:
        yield note(
            Check.WORKERS, f"{text}, {idle} of them without a partition", "they take over when another one is lost"
        )
    else:
        all_of_them = "the only partition" if view.partitions == 1 else f"all {view.partitions} partitions"
        yield ok(Check.WORKERS, f"{text}, and they have {all_of_them}")


@dataclass(slots=True)
class Backlog:
    """The numbers of open messages."""

    pending: Counter[str] = field(default_factory=Counter)
    #: By group, the birth of its oldest pending message, ms.
    oldest: dict[str, int] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    #: Real topics of all open messages.
    topics: set[str] = field(default_factory=set)
    #: Scheduled messages whose time came more than a minute ago.
    undelivered: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    overdue: int = 0
    #: By partition, the error when it could not be read.
    unread: dict[int, str] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)
    #: By group, the barrier tables that messages name whose checks have not decided them.
    barriers: dict[str, set[str]] = field(default_factory=dict)


def read_backlog(view: ClusterView, now: int) -> Backlog:
    """Read the open messages from the topics, as `txbridge pending` does. Raises TxBridgeError."""
    connection = Connection.open(view.settings)
    found = Backlog()
    for partition, partition_view in enumerate(try_read_views(connection, range(connection.partitions))):
        if isinstance(partition_view, TxBridgeError):
            found.unread[partition] = str(partition_view)
        else:
            _count(found, partition_view, now)
            _note_barriers(found, connection, partition_view)
    return found


def _note_barriers(found: Backlog, connection: Connection, view: PartitionView) -> None:
    """Note the barrier tables of the oldest messages that were asked about without success. A few are enough."""
    pending = (one for one in view.open_messages() if one.state is TransactionState.PENDING and one.checks)
    oldest = nsmallest(_MOST_BODIES, pending, key=lambda one: one.born)
    if not oldest:
        return
    try:
        detailed = with_keys(connection, view.partition, oldest)
    except TxBridgeError as error:
        found.odd.append(f"messages of partition {view.partition} could not be read from the half topic: {error}")
        return
    for message in detailed:
        if message.barrier_id is not None:
            found.barriers.setdefault(message.group, set()).add(message.barrier_id)


def _count(found: Backlog, view: PartitionView, now: int) -> None:
    found.odd += view.warnings
    for message in view.open_messages():
        found.topics.update(topics_of(message.real_topic))
        match message.state:
            case TransactionState.PENDING:
                found.pending[message.group] += 1
                found.oldest[message.group] = min(found.oldest.get(message.group, now), message.born)
                found.overdue += is_overdue(message, now)
            case TransactionState.HELD:
                found.held.update(topics_of(message.real_topic))
            case TransactionState.SCHEDULED:
                found.undelivered += is_overdue(message, now)
            case _:
                found.discarded[message.group] += 1


def producers(view: ClusterView, groups: Mapping[str, Any], backlog: Backlog | None, now: int) -> Iterator[Finding]:
    """Findings about producer groups, which have to be live to answer their checks."""
    alive: dict[str, int] = {}
    dead: list[str] = []
    pending = Counter[str]() if backlog is None else backlog.pending
    for group in sorted({*view.groups, *pending}):
        answer = groups.get(view.names.check(group))
        if isinstance(answer, KafkaError):
            name = view.names.check(group)
            yield unknown(
                Check.PRODUCERS, f"the group {name} cannot be described: {answer.name()}", _grant("group", name)
            )
        elif answer is not None and answer.members:
            alive[group] = len(answer.members)
        elif pending[group]:
            assert backlog is not None
            age = duration(max(now - backlog.oldest[group], 0))
            limit = duration(view.settings.transaction_max_age)
            yield warning(
                Check.PRODUCERS,
                f"no member of the producer group {group} is connected, to Kafka or a front door, and "
                f"{counted(pending[group], 'undecided message')} {'waits' if pending[group] == 1 else 'wait'} for it, "
                f"the oldest for {age}; none is checked, and at {limit} they are discarded",
                START_IT,
            )
        else:
            dead.append(group)
    for group, barriers in sorted(backlog.barriers.items() if backlog is not None else ()):
        named = ", ".join(sorted(barriers))
        if len(barriers) > 1:
            yield warning(
                Check.PRODUCERS,
                f"undecided messages of the producer group {group} come from {len(barriers)} databases (barrier tables "
                f"{named}): only a process with the same one can answer a check",
                "give all processes of a producer group the same database, or each service a group of its own; see "
                "docs/sqlalchemy.md",
            )
        else:
            yield note(
                Check.PRODUCERS, f"undecided messages of the producer group {group} come from the barrier table {named}"
            )
    if alive:
        names = ", ".join(f"{group} ({count})" for group, count in alive.items())
        trust = "; they trust each other (docs/security.md#tenants)" if len(alive) > 1 else ""
        yield ok(Check.PRODUCERS, f"alive, with so many processes: {names}{trust}")
    if dead:
        yield note(Check.PRODUCERS, f"nobody is alive of {', '.join(dead)}; nothing waits for them")
    if view.groups_hidden:
        prefix = view.names.check("")
        text = f"missing right DESCRIBE on topic {prefix}*: there may be producer groups that are not shown"
        do = "grant it to the user of this connection; `txbridge topics acls` prints the rights of each role"
        yield note(Check.PRODUCERS, text, do) if alive or dead or pending else unknown(Check.PRODUCERS, text, do)
    elif not alive and not dead and not pending:
        yield note(Check.PRODUCERS, "no producer has been here yet")


def backlog_findings(backlog: Backlog) -> Iterator[Finding]:
    """Findings about open messages that need attention."""
    for partition, why in backlog.unread.items():
        yield unknown(Check.BACKLOG, f"partition {partition} could not be read: {why}", "see docs/runbook.md")
    for text in backlog.odd:
        yield warning(Check.BACKLOG, text, "docs/runbook.md says what the workers do about it")
    if backlog.held:
        names = ", ".join(f"{topic} ({count})" for topic, count in backlog.held.most_common())
        yield warning(
            Check.BACKLOG,
            f"committed messages are held, because their real topics do not take them: {names}",
            f"`txbridge pending --state held` says why; {REMEDIES[TransactionState.HELD]}",
        )
    if backlog.discarded:
        names = ", ".join(f"{group} ({count})" for group, count in backlog.discarded.most_common())
        yield warning(
            Check.BACKLOG,
            f"undecided messages were given up and can be resumed: {names}",
            REMEDIES[TransactionState.DISCARDED],
        )
    if backlog.overdue:
        yield warning(
            Check.BACKLOG,
            f"{counted(backlog.overdue, 'undecided message')} should have been checked or discarded more than a minute "
            f"ago",
            "see the findings about workers and producers",
        )
    if backlog.undelivered:
        yield warning(
            Check.BACKLOG,
            f"{counted(backlog.undelivered, 'scheduled message')} should have been delivered more than a minute ago",
            "see the findings about workers",
        )
    if not (backlog.held or backlog.discarded or backlog.overdue or backlog.undelivered or backlog.unread):
        yield ok(Check.BACKLOG, f"{backlog.pending.total()} undecided, none overdue, none held, none discarded")


def _grant(kind: str, name: str) -> str:
    return f"grant DESCRIBE on {kind} {name} to this user"
