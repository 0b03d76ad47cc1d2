"""The connection of an operation: settings, the topics of a namespace, and Kafka's errors in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError, UsageError
from txbridge.kafka.admin import FoundTopic, KafkaCluster, MissingRight
from txbridge.kafka.errors import UNREACHABLE, is_denied
from txbridge.subject import Subject
from txbridge.topics.verify import LayoutError

#: A search by time starts this long (ms) earlier, because the clocks of brokers differ.
CLOCK_SKEW_MS = 60_000


@contextmanager
def kafka_errors(purpose: str) -> Iterator[None]:
    """Turn errors of Kafka in this block into KafkaUnreachableError or EnvironmentProblemError, with the purpose.

    A TimeoutError, about one record that did not come, becomes an EnvironmentProblemError: other partitions may answer.
    """
    try:
        yield
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        text = f"{purpose}: {error.str()} ({error.name()})"
        if error.code() in UNREACHABLE:
            raise KafkaUnreachableError(f"Kafka cannot be reached; {text}") from failure
        if is_denied(error):
            raise EnvironmentProblemError(f"a right is missing; {text}") from failure
        raise EnvironmentProblemError(f"Kafka refused; {text}") from failure
    except TimeoutError as failure:
        raise EnvironmentProblemError(f"Kafka was too slow; {purpose}: {failure}") from failure


@dataclass(frozen=True, slots=True)
class Connection:
    """A namespace on a cluster, as operations need it: the internal topics exist and fit together.

    It has a client of Kafka's: a process that was forked opens its own.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    cluster: KafkaCluster = field(repr=False, compare=False)
    subject: Subject
    names: Names
    policy: CheckPolicy
    partitions: int
    #: Kafka's ids of half, end, op and offset, as the checkpoint names them.
    topic_ids: Mapping[str, str]

    @classmethod
    def open(cls, settings: WorkerSettings) -> Connection:
        """Look at the topics; a few requests, each bounded by REQUEST_TIMEOUT_S (10 s).

        `settings` should be the workers' settings: the times of the next checks follow from them.
        Raises LayoutError when topics are missing, KafkaUnreachableError, EnvironmentProblemError, UsageError.
        """
        names, kafka = Names(settings.namespace), settings.librdkafka
        topics = names.identified
        cluster = KafkaCluster.connect(kafka)
        subject = Subject(settings.namespace, settings.bootstrap_servers, cluster.read_greeting(names.half).cluster_id)
        seen = cluster.read_topics(list(topics.values()))
        facts = {short: sight for short, topic in topics.items() if isinstance(sight := seen[topic], FoundTopic)}
        problems = [_problem(names, topics[short], seen[topics[short]]) for short in topics if short not in facts]
        if not problems and len({one.partitions for one in facts.values()}) > 1:
            counts = ", ".join(f"{one.name} {one.partitions}" for one in facts.values())
            problems.append(f"the numbers of partitions differ: {counts}. `txbridge topics plan` says what to do")
        if problems:
            raise LayoutError(problems)
        return cls(
            kafka=kafka,
            cluster=cluster,
            subject=subject,
            names=names,
            policy=settings.check_policy,
            partitions=facts["half"].partitions,
            topic_ids={short: one.topic_id for short, one in facts.items()},
        )

    def require_partition(self, partition: int) -> None:
        """Raises UsageError for a partition that HALF does not have."""
        if not 0 <= partition < self.partitions:
            last = self.partitions - 1
            raise UsageError(f"{self.names.half} has no partition {partition}: its partitions are 0 to {last}")


def _problem(names: Names, topic: str, sight: MissingRight | FoundTopic | None) -> str:
    if sight is not None:
        return str(sight)
    option = f" --namespace {names.namespace}" if names.namespace else ""
    return (
        f"{topic} does not exist. Is this the right cluster, and the right --namespace? "
        f"`txbridge topics apply{option}` creates what is missing"
    )


def start_since(connection: Connection, topic: str, partition: int, born: int) -> int | None:
    """The first offset that can hold a record about a message of this birth (ms); None if none has come since then.

    Raises KafkaException.
    """
    where, spec = (topic, partition), OffsetSpec.for_timestamp(max(born - CLOCK_SKEW_MS, 0))
    offset = connection.cluster.read_offsets([where], spec)[where]
    # Kafka answers -1 when nothing came since then.
    return offset if offset >= 0 else None
