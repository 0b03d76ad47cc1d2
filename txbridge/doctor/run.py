"""The whole examination. A part that cannot be examined is a finding as well, and hides no other finding."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from txbridge.config.worker import WorkerSettings
from txbridge.core.names import READER_GROUP, Names
from txbridge.deadline import Deadline
from txbridge.doctor import runtime_checks, topic_checks
from txbridge.doctor.cluster_view import RETRY_S, ClusterView, Questions, read_cluster
from txbridge.doctor.finding import Check, Finding, Report, note, ok, problem, unknown, warning
from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.acl import Role
from txbridge.kafka.admin import UNCLEAN, FoundTopic, Greeting, KafkaCluster
from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.descriptors import needed
from txbridge.kafka.errors import UNREACHABLE, is_denied
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
    yield from runtime_checks.workers(view, groups)
    backlog, why = _backlog(view, now)
    if backlog is not None:
        # Groups whose check topic this user cannot see, or that have none.
        more = [name for name in map(view.names.check, backlog.pending) if name not in groups]
        groups = {**groups, **view.describe_groups(more)}
    yield from runtime_checks.producers(view, groups, backlog, now)
    if backlog is not None:
        yield from runtime_checks.backlog_findings(backlog)
        if backlog.topics:
            view.real = {**view.cluster.read_topics(backlog.topics), **view.real}
    elif why:
        yield unknown(
            Check.BACKLOG, f"what is open could not be read: {why}", "see the findings about topics and rights"
        )


def _backlog(view: ClusterView, now: int) -> tuple[runtime_checks.Backlog | None, str]:
    """The open messages, or the reason why they cannot be read."""
    sights = [view.seen[topic] for topic in view.names.identified.values()]
    if not all(isinstance(sight, FoundTopic) for sight in sights):
        # Without a topic nothing is open. The content of a hidden topic is not known.
        return None, "" if None in sights else "this user may not see the internal topics"
    try:
        return runtime_checks.read_backlog(view, now), ""
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
        (topic, partition)
        for topic in (*view.names.internal, view.names.outbox)
        if (described := view.described.get(topic))
        for partition, place in enumerate(described.places)
        if place.leader >= 0
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
