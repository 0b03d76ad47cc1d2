"""The whole examination. A part that cannot be examined is a finding as well, and hides no other finding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from txbridge.config.worker import WorkerSettings
from txbridge.core.names import READER_GROUP, Names
from txbridge.deadline import Deadline
from txbridge.doctor import acl_checks, broker_checks, runtime_checks, topic_checks
from txbridge.doctor.admin_requests import Answers, ask_brokers
from txbridge.doctor.cluster_view import RETRY_S, ClusterView, Questions, read_cluster
from txbridge.doctor.finding import Check, Finding, Report, ok, problem, unknown, warning
from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.admin import REQUEST_TIMEOUT_S, FoundTopic, KafkaCluster
from txbridge.subject import Subject
from txbridge.text import duration

#: The coordinator aborts a transaction after its time-out. It checks every 10 s
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
_ABORTED_AFTER_MS = 10_000

_Offsets = Mapping[tuple[str, int], int]


def examine(settings: WorkerSettings, questions: Questions | None = None) -> Report:
    """Examine a namespace with the workers' settings.

    Takes about a second on a healthy cluster. Each request is bounded by REQUEST_TIMEOUT_S (10 s), those about
    transactional ids together by 30 s, and the reading of a partition by 30 s. The wait for the end of open
    Kafka transactions is bounded by commit_timeout and 10 s. Raises KafkaUnreachableError when no broker answers,
    EnvironmentProblemError, and UsageError for settings that cannot work.
    """
    cluster = KafkaCluster.connect(settings.librdkafka)
    greeting = cluster.read_greeting(Names(settings.namespace).half)
    subject = Subject(settings.namespace, settings.bootstrap_servers, greeting.cluster_id)
    try:
        view = read_cluster(settings, questions or Questions(), cluster)
    except KafkaUnreachableError as error:
        return Report(subject, list(broker_checks.without_controller(greeting, str(error))))
    ids = [view.names.transactional_id(partition) for partition in range(view.partitions)]
    answers = ask_brokers(settings.librdkafka, ids)
    groups = view.describe_groups([settings.app_id, READER_GROUP, *map(view.names.check, view.groups)])
    return Report(subject, list(_findings(view, answers, groups, time.time_ns() // 1_000_000)), view.half)


def _findings(view: ClusterView, answers: Answers, groups: Mapping[str, Any], now: int) -> Iterator[Finding]:
    yield from broker_checks.connection(view, answers)
    yield from broker_checks.versions(answers)
    yield from topic_checks.topics(view)
    yield from topic_checks.retention(view)
    yield from topic_checks.replication(view)
    yield from broker_checks.limits(view)
    yield from broker_checks.descriptors(view)
    yield from acl_checks.granted(view, answers, groups)
    yield from runtime_checks.workers(view, groups)
    backlog, why = _backlog(view, now)
    if backlog is not None:
        # Groups whose check topic this user cannot see, or that have none.
        more = [name for name in map(view.names.check, backlog.pending) if name not in groups]
        groups = {**groups, **view.describe_groups(more)}
    yield from runtime_checks.producers(view, groups, backlog, now)
    if backlog is not None:
        yield from runtime_checks.backlog_findings(backlog)
    elif why:
        yield unknown(
            Check.BACKLOG, f"what is open could not be read: {why}", "see the findings about topics and rights"
        )
    yield from _transactions(view)
    if backlog is not None and backlog.topics:
        view.real = {**view.cluster.read_topics(backlog.topics), **view.real}
    yield from topic_checks.real_topics(view)


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
                "and abort; see docs/incidents.md",
            )
    if view.partitions and not lasting and not any(topic in never for topic, _ in begun):
        yield ok(Check.TRANSACTIONS, "no Kafka transaction hangs in the internal topics")


def _read_ends(view: ClusterView, isolation: IsolationLevel) -> _Offsets:
    """The end of each partition with a leader, as readers of this isolation see it. Raises KafkaException."""
    wanted = {
        TopicPartition(topic, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for topic in view.names.internal
        if (described := view.described.get(topic))
        for partition, place in enumerate(described.places)
        if place.leader >= 0
    }
    if not wanted:
        return {}
    answers = view.cluster.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return {(one.topic, one.partition): answer.result().offset for one, answer in answers.items()}
