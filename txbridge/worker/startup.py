"""The start of a worker: a log line, the room for memory and descriptors, and a check of the rights that it needs.

A missing right is reported by name at the start, instead of by a partition that makes no progress. Rights on real
topics are checked at delivery, because the topics' names are not known before.
"""

from __future__ import annotations

import ctypes
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as NoAnswer
from importlib.metadata import version

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.acl import Pattern, ResourceKind, Right, Role, rights
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.kafka.descriptors import capacity, needed, refusal
from txbridge.kafka.errors import missing_right
from txbridge.kafka.group_membership import GroupMembership
from txbridge.log import get_logger
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


def require_rights(admin: AdminClient, membership: GroupMembership, names: Names, app_id: str) -> None:
    """Require the rights on the internal topics and on the workers' group.

    Raises EnvironmentProblemError, which names all missing rights. A right about which Kafka gives no answer does not
    count as missing.
    """
    wanted = [right for right in rights(Role.WORKER, names, app_id=app_id) if right.pattern is Pattern.LITERAL]
    missing = [
        *_of_topics(admin, [right for right in wanted if right.name in names.internal]),
        *_of_group(membership, next(right for right in wanted if right.kind is ResourceKind.GROUP)),
    ]
    if missing:
        raise EnvironmentProblemError("a worker cannot work without these rights:\n- " + "\n- ".join(missing))


def _of_topics(admin: AdminClient, wanted: list[Right]) -> Iterator[str]:
    answers = admin.describe_topics(
        TopicCollection([right.name for right in wanted]),
        include_authorized_operations=True,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    for right in wanted:
        try:
            operations = answers[right.name].result(REQUEST_TIMEOUT_S).authorized_operations
        except (KafkaException, NoAnswer):
            continue
        if operations is not None:
            has = {one.name for one in operations}
            lacking = [operation for operation in right.operations if operation not in has]
            if lacking:
                yield missing_right(", ".join(lacking), f"topic {right.name}")


def _of_group(membership: GroupMembership, wanted: Right) -> Iterator[str]:
    try:
        operations = membership.ask([wanted.name])[wanted.name].result(REQUEST_TIMEOUT_S).authorized_operations
        denied = operations is not None and "READ" not in {one.name for one in operations}
    except KafkaException as failure:
        denied = failure.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    except NoAnswer:
        return
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
