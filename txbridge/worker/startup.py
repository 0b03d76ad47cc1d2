"""Checks of what a worker needs: at the start memory, descriptors and rights, and later the same internal topics.

A missing right is reported by name at the start, instead of by a partition that makes no progress. Rights on real
topics are checked at delivery, because the topics' names are not known before.

Kafka lets any user with ALTER add partitions to a topic at any time. A record in a partition that the other topics do
not have is never delivered, and no owner reads it. A topic that was deleted and created again is another one: the state
in memory does not fit it, and Faust's consumer may not learn of it. So each worker compares numbers and ids.
"""

from __future__ import annotations

import ctypes
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.acl import Pattern, ResourceKind, Right, Role, rights
from txbridge.kafka.admin import REQUEST_TIMEOUT_S, KafkaCluster
from txbridge.kafka.descriptors import capacity, needed, refusal
from txbridge.kafka.errors import is_denied, is_missing_topic, missing_right, other_cluster
from txbridge.kafka.group_membership import GroupMembership
from txbridge.log import get_logger
from txbridge.topics.verify import Layout
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.partition_context import PartitionSlots

_log = get_logger("txbridge.worker")

#: mallopt's M_ARENA_MAX, and the value. With two, the threads of librdkafka use no more processor time.
_ARENA_MAX, _ARENAS = -8, 2
#: Each time malloc looks at all its free memory, which takes milliseconds after a backlog and less at other times.
_TRIM_EVERY_S = 30.0


def log_start(settings: WorkerSettings) -> None:
    """Log the release, the brokers, and the options that differ from their defaults. Never a secret."""
    _log.info(
        "worker_started",
        version=version("txbridge"),
        brokers=settings.bootstrap_servers,
        namespace=settings.namespace,
        worker_group=settings.app_id,
        options=settings.changed_options(),
    )


def log_end(seconds: float) -> None:
    """Log that the worker has ended on request, `seconds` after its start."""
    _log.info("worker_ended", seconds=round(seconds, 3))


def slots_for(partitions: int, brokers: int) -> PartitionSlots:
    """Raise the soft limit of file descriptors to what all partitions need, and return the room that there is.

    Not to the hard limit: with a million descriptors every start of a child process may close each of them.
    """
    wanted = needed(partitions, brokers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return PartitionSlots()
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == wanted:
        return PartitionSlots()
    text = refusal(limit, partitions, brokers)
    _log.warning("few_file_descriptors", limit=limit, needed=wanted, note=text)
    return PartitionSlots(capacity(limit, brokers), text)


def require_rights(cluster: KafkaCluster, membership: GroupMembership, names: Names, app_id: str) -> None:
    """Require the rights on the internal topics and on the workers' group.

    Raises EnvironmentProblemError, which names all missing rights. A right about which Kafka gives no answer does not
    count as missing.
    """
    wanted = [right for right in rights(Role.WORKER, names, app_id=app_id) if right.pattern is Pattern.LITERAL]
    missing = [
        *_of_topics(cluster, [right for right in wanted if right.name in names.internal]),
        *_of_group(membership, next(right for right in wanted if right.kind is ResourceKind.GROUP)),
    ]
    if missing:
        raise EnvironmentProblemError("a worker cannot work without these rights:\n- " + "\n- ".join(missing))


def _of_topics(cluster: KafkaCluster, wanted: list[Right]) -> Iterator[str]:
    try:
        answers = cluster.describe_topics([right.name for right in wanted], REQUEST_TIMEOUT_S, rights=True)
    except (KafkaException, TimeoutError):
        return
    for right in wanted:
        try:
            operations = answers[right.name].result().authorized_operations
        except KafkaException:
            continue
        if operations is not None:
            has = {one.name for one in operations}
            lacking = [operation for operation in right.operations if operation not in has]
            if lacking:
                yield missing_right(", ".join(lacking), f"topic {right.name}")


def _of_group(membership: GroupMembership, wanted: Right) -> Iterator[str]:
    answer = membership.describe_groups([wanted.name], REQUEST_TIMEOUT_S)[wanted.name]
    if isinstance(answer, KafkaError):
        denied = is_denied(answer)
    else:
        operations = answer.authorized_operations
        denied = operations is not None and "READ" not in {one.name for one in operations}
    if denied:
        yield missing_right("READ", f"group {wanted.name}")


def return_freed_memory() -> None:
    """Let malloc have few arenas, and return what is free from time to time. To be called before threads start.

    A backlog fills the worker's memory for a moment. glibc's malloc has eight arenas for each processor, and a worker
    has twenty threads of librdkafka for each partition. After a backlog of 50,000 messages 215 of 417 MB were free
    memory in these arenas, where only their own threads could use it.
    """
    libc = ctypes.CDLL(None)
    # Other C libraries have neither arenas nor these functions.
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        libc.mallopt(_ARENA_MAX, _ARENAS)
        threading.Thread(target=_trim_for_ever, args=(libc,), name="txbridge-malloc", daemon=True).start()


def _trim_for_ever(libc: ctypes.CDLL) -> None:
    while True:
        time.sleep(_TRIM_EVERY_S)
        libc.malloc_trim(0)


_REQUEST_TIMEOUT_S = 5.0
#: Stands for the cluster among the names of the topics.
_CLUSTER = ""


class InternalTopics:
    """Compares cluster and topics with those of the start, in the caller's thread. The results are for any thread."""

    def __init__(self, cluster: KafkaCluster, names: Names, metrics: WorkerMetrics, start: Layout) -> None:
        self._cluster = cluster
        #: HALF is the first.
        self._names = list(names.identified.values())
        self._metrics = metrics
        self._start = start
        #: The problem in a sentence; empty if there is none.
        self.problem = ""
        #: Whether another cluster has answered. Nothing may be served there.
        self.is_elsewhere = False
        #: Whether all topics are there, and some are not those of the start. Only a new process fits them.
        self.were_made_again = False

    def look_again(self) -> None:
        """Ask Kafka. Raises KafkaException, TimeoutError; then what is known stays."""
        answers = self._cluster.ask(self._describe, _REQUEST_TIMEOUT_S)
        problem = other_cluster(self._start.cluster_id, str(answers.pop(_CLUSTER).result().cluster_id))
        self.is_elsewhere = bool(problem)
        if not problem:
            found = {name: one for name, one in answers.items() if not is_missing_topic(one.exception())}
            problem = self._problem_of({name: one.result() for name, one in found.items()})
            if problem and problem != self.problem:
                self._report(problem)
        self.problem = problem

    def _describe(self, admin: AdminClient, seconds: float) -> Mapping[str, Future[Any]]:
        topics = admin.describe_topics(TopicCollection(self._names), request_timeout=seconds)
        return {**topics, _CLUSTER: admin.describe_cluster(request_timeout=seconds)}

    def _report(self, text: str) -> None:
        self._metrics.count_failure("topics_changed")
        _log.error("topics_changed", error=text)

    def _problem_of(self, found: Mapping[str, Any]) -> str:
        if missing := [name for name in self._names if name not in found]:
            return f"{' and '.join(missing)} do not exist any more: `txbridge topics apply` creates them"
        others = [name for name, one in found.items() if str(one.topic_id) != self._start.topic_ids[name]]
        self.were_made_again = bool(others)
        if others:
            return f"{' and '.join(others)} were deleted and created again: this process ends, to be started anew"
        (half, count), *rest = ((name, len(found[name].partitions)) for name in self._names)
        if different := [f"{name} {number}" for name, number in rest if number != count]:
            return (
                f"{half} has {count} partitions, {' and '.join(different)}: their number was changed. What is sent to "
                "a partition that not all of them have is never delivered, and nobody is asked about it. Partitions "
                "cannot be removed: stop the clients, let what is pending come to its end, and use a new namespace"
            )
        if count != (before := self._metrics.partitions_found):
            # All numbers are equal, so each partition gets an owner. But keys go to other partitions now.
            self._report(
                f"HALF, END, OP and OFFSET have {count} partitions, {before} before: messages of one key that were "
                "prepared before and after may overtake each other"
            )
            self._metrics.partitions_found = count
        return ""
