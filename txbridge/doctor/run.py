"""The whole examination. A part that cannot be examined is a finding as well, and hides no other finding."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from importlib.metadata import version
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupState, IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from txbridge.config.worker import WorkerSettings
from txbridge.core.names import READER_GROUP, Names, topics_of
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.doctor import topic_checks
from txbridge.doctor.cluster_view import RETRY_S, ClusterView, Questions, read_cluster
from txbridge.doctor.finding import Check, Finding, Report, note, ok, problem, unknown, warning
from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.acl import Role
from txbridge.kafka.admin import UNCLEAN, FoundTopic, Greeting, KafkaCluster
from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.descriptors import needed
from txbridge.kafka.errors import UNREACHABLE, is_denied
from txbridge.operations.causes import REMEDIES, START_IT, is_overdue
from txbridge.operations.connection import Connection
from txbridge.operations.listing import with_keys
from txbridge.operations.reading import try_read_views
from txbridge.operations.view import PartitionView
from txbridge.subject import Subject
from txbridge.text import counted, duration

#: The coordinator aborts a transaction after its time-out. It checks every 10 s
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
_ABORTED_AFTER_MS = 10_000

_Offsets = Mapping[tuple[str, int], int]

#: The usual soft limit of file descriptors, and the hard limit where somebody has lowered it.
_USUAL_DESCRIPTORS = 1_024
#: Limits of a broker that can refuse an option of a worker: the limit, the option, and which side the limit bounds.
_LIMITS = (
    ("transaction.max.timeout.ms", "commit_timeout", "most"),
    ("group.min.session.timeout.ms", "session_timeout", "least"),
    ("group.max.session.timeout.ms", "session_timeout", "most"),
)
#: By broker.
_Configs = Mapping[int, Mapping[str, str] | KafkaError]


def examine(settings: WorkerSettings, questions: Questions | None = None) -> Report:
    """Examine a namespace with the workers' settings.

    Takes about a second on a healthy cluster. Each request is bounded by REQUEST_TIMEOUT_S (10 s), and the reading of a
    partition by 30 s. The wait for the end of open Kafka transactions is bounded by commit_timeout and 10 s. Raises
    KafkaUnreachableError when no broker answers, EnvironmentProblemError, and UsageError for settings that cannot work.
    """
    questions = questions or Questions()
    if questions.role is Role.WORKER:
        # Faust's connection cannot do all that librdkafka can.
        aiokafka_auth(settings.librdkafka)
    cluster = KafkaCluster.connect(settings.librdkafka)
    greeting = cluster.read_greeting(Names(settings.namespace).half)
    subject = Subject(settings.namespace, settings.bootstrap_servers, greeting.cluster_id)
    try:
        view = read_cluster(settings, questions, cluster)
    except KafkaUnreachableError as error:
        return Report(subject, list(_without_controller(greeting, str(error))))
    groups = view.describe_groups([settings.app_id, READER_GROUP, *map(view.names.check, view.groups)])
    return Report(subject, list(_findings(view, groups, time.time_ns() // 1_000_000)))


def _findings(view: ClusterView, groups: Mapping[str, Any], now: int) -> Iterator[Finding]:
    configs = view.read_broker_configs()
    yield from _connection(view, configs)
    librdkafka = confluent_kafka.libversion()[0]
    ours = f"txbridge {version('txbridge')}, Python {platform.python_version()}, librdkafka {librdkafka}"
    yield ok(Check.VERSIONS, ours)
    yield from topic_checks.topics(view)
    yield from topic_checks.retention(view)
    yield from topic_checks.replication(view)
    yield from _limits(view, configs)
    yield from _descriptors(view)
    yield from topic_checks.granted(view, groups)
    if view.has_workers:
        yield from _messages(view, groups, now)
    else:
        yield note(Check.WORKERS, "no topic of clients and workers is there, or shown to this user")
    yield from _transactions(view)
    yield from topic_checks.real_topics(view)


def _messages(view: ClusterView, groups: Mapping[str, Any], now: int) -> Iterator[Finding]:
    """Findings about workers, producers and the messages between them."""
    yield from workers(view, groups)
    backlog, why = _backlog(view, now)
    if backlog is not None:
        # Groups whose check topic this user cannot see, or that have none.
        more = [name for name in map(view.names.check, backlog.pending) if name not in groups]
        groups = {**groups, **view.describe_groups(more)}
    yield from producers(view, groups, backlog, now)
    if backlog is not None:
        yield from backlog_findings(backlog)
        if backlog.topics:
            view.real = {**view.cluster.read_topics(backlog.topics), **view.real}
    elif why:
        yield unknown(
            Check.BACKLOG, f"what is open could not be read: {why}", "see the findings about topics and rights"
        )


def _backlog(view: ClusterView, now: int) -> tuple[Backlog | None, str]:
    """The open messages, or the reason why they cannot be read."""
    sights = [view.seen[topic] for topic in view.names.identified.values()]
    if not all(isinstance(sight, FoundTopic) for sight in sights):
        # Without a topic nothing is open. The content of a hidden topic is not known.
        return None, "" if None in sights else "this user may not see the internal topics"
    try:
        return read_backlog(view, now), ""
    except TxBridgeError as error:
        return None, str(error)


def _transactions(view: ClusterView) -> Iterator[Finding]:
    """Findings about transactions that are open for longer than a worker's can be, and about any in END or HALF.

    Returns at once if none is open. Otherwise it waits until they have ended, as long as a worker's may be open.
    """
    patience = view.settings.commit_timeout + _ABORTED_AFTER_MS
    names = view.names
    try:
        latest = _read_ends(view, IsolationLevel.READ_UNCOMMITTED)
        stable = _read_ends(view, IsolationLevel.READ_COMMITTED)
        begun = {where: offset for where, offset in stable.items() if offset < latest[where]}
        # HALF is read uncommitted: an open transaction blocks no reader.
        lasting = {where: offset for where, offset in begun.items() if where[0] != names.half}
        deadline = Deadline(patience / 1000)
        while lasting and not deadline.is_over:
            time.sleep(RETRY_S)
            stable = _read_ends(view, IsolationLevel.READ_COMMITTED)
            lasting = {where: offset for where, offset in lasting.items() if stable.get(where) == offset}
    except KafkaException as failure:
        yield unknown(
            Check.TRANSACTIONS,
            f"the offsets of the internal topics could not be read: {failure.args[0].str()}",
            "see the findings about topics, replication and rights",
        )
        return
    never = {
        names.end: "what it aborts decides nothing, and the decisions behind it wait",
        names.half: "a half message that it aborts stays a half message, is checked, and can be committed",
    }
    for (topic, partition), offset in begun.items():
        found = f"{topic}[{partition}] has an open Kafka transaction at offset {offset}"
        if topic in never:
            yield warning(
                Check.TRANSACTIONS,
                f"{found}, where none may be: {never[topic]}",
                "let that application send with a producer without transactional.id",
            )
        if (topic, partition) in lasting:
            yield problem(
                Check.TRANSACTIONS,
                f"{found} for more than {duration(patience)}: nobody reads beyond it",
                "stop the process that keeps it open. If there is none, it hangs: kafka-transactions.sh find-hanging "
                "and abort; see docs/runbook.md#a-hanging-kafka-transaction",
            )
    if latest and not lasting and not any(topic in never for topic, _ in begun):
        yield ok(Check.TRANSACTIONS, "no Kafka transaction hangs in the internal topics")


def _read_ends(view: ClusterView, isolation: IsolationLevel) -> _Offsets:
    """The end of each partition with a leader, as readers of this isolation see it. Raises KafkaException."""
    led = [
        (topic, one.id)
        for topic in (*view.names.internal, view.names.outbox)
        if (described := view.described.get(topic))
        for one in described.partitions
        if one.leader is not None
    ]
    return view.cluster.read_offsets(led, OffsetSpec.latest(), isolation)  # type: ignore[no-untyped-call]


def _connection(view: ClusterView, configs: _Configs) -> Iterator[Finding]:
    """Findings about brokers that do not answer at the address that they advertise."""
    brokers = ", ".join(f"{node} {address}" for node, address in sorted(view.brokers.items()))
    silent = [node for node, one in configs.items() if isinstance(one, KafkaError) and one.code() in UNREACHABLE]
    for node in silent:
        yield problem(
            Check.CONNECTION,
            f"broker {node} at {view.brokers[node]} does not answer",
            "start it; if it runs, its advertised.listeners must name an address that is reachable from here",
        )
    if not silent:
        count = len(view.brokers)
        yield ok(
            Check.CONNECTION,
            f"cluster {view.cluster_id}, {counted(count, 'broker')} ({brokers}), controller {view.controller}",
        )


def _without_controller(greeting: Greeting, error: str) -> Iterator[Finding]:
    """The findings when brokers answer and the controller does not."""
    brokers = ", ".join(f"{node} {address}" for node, address in sorted(greeting.brokers.items()))
    yield problem(
        Check.CONNECTION,
        f"cluster {greeting.cluster_id} ({brokers}) answers, but its controller does not: {error}",
        "start what is down: a majority of the controllers must run, and the broker that Kafka names as controller",
    )
    yield unknown(
        Check.TOPICS,
        "topics, rights, workers and transactions could not be examined without a controller",
        "run the doctor again when there is one",
    )


def _descriptors(view: ClusterView) -> Iterator[Finding]:
    """The file descriptors of a worker, if they may be too many. Its limit is known on its own machine only."""
    brokers = len(view.brokers)
    if (most := needed(view.partitions, brokers)) > _USUAL_DESCRIPTORS:
        yield note(
            Check.LIMITS,
            f"a worker that takes over all {view.partitions} partitions may have {most} file descriptors open "
            f"(with {counted(brokers, 'broker')})",
            "give it this hard limit at least (ulimit -Hn, LimitNOFILE); it raises its soft limit itself",
        )


def _limits(view: ClusterView, configs: _Configs) -> list[Finding]:
    """Findings about brokers that refuse the worker's time-outs, or elect unclean leaders."""
    found: list[Finding] = []
    for node, config in configs.items():
        if isinstance(config, KafkaError):
            denied = is_denied(config)
            do = "grant DESCRIBE_CONFIGS on the cluster to this user" if denied else f"see whether broker {node} is up"
            text = f"the configuration of broker {node} could not be read: {config.str()}"
            found.append(unknown(Check.LIMITS, text, do))
            continue
        for name, option, which in _LIMITS:
            ours, limit = getattr(view.settings, option), config.get(name)
            if limit is None or (ours >= int(limit) if which == "least" else ours <= int(limit)):
                continue
            text = f"{option} is {ours} ms, and broker {node} accepts {limit} at {which} ({name}): workers cannot start"
            found.append(problem(Check.LIMITS, text, f"set {option} accordingly, or {name} on the brokers"))
        if config.get(UNCLEAN) == "true":
            text = f"broker {node} elects leaders that are not in sync ({UNCLEAN}): delivered messages can be lost"
            found.append(warning(Check.LIMITS, text, "set it to false on the brokers, or on each topic"))
    good = "the brokers accept commit_timeout and session_timeout, and elect no unclean leaders"
    return found or [ok(Check.LIMITS, good)]


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
