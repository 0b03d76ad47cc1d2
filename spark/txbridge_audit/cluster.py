"""What the audit asks Kafka outside Spark: topics, log starts, ends, stable offsets, policies and topic ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public there, but re-exported without saying so
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from txbridge_audit.cuts import TopicPartition
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.settings import KafkaSettings

#: Longest wait for one answer, seconds. A healthy cluster answers in milliseconds; 10 s outlasts a leader election.
REQUEST_TIMEOUT = 10.0
#: Questions that met an election, a restarting or a busy broker are asked so often, a second apart.
_ATTEMPTS, _PAUSE = 5, 1.0

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
#: The first record that is not older than 1970, with its timestamp: the first one that is left.
_FIRST_RECORD: Any = OffsetSpec.for_timestamp(0)

_TRANSIENT = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001  (librdkafka's own name for a local time-out)
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    },
)

#: What half messages name may be no topic's name at all.
_NO_SUCH_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})
_NO_RIGHT = KafkaError.TOPIC_AUTHORIZATION_FAILED

_K = TypeVar("_K", bound=Hashable)


class Cluster:
    """Metadata and offsets of one Kafka cluster. Every method raises CouldNotAuditError when Kafka does not answer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._last_error = ""
        #: A cluster that has never answered is more likely misspelt than busy: that is said at once.
        self._answered = False
        #: Kafka's own name of the cluster; empty until it has answered `partition_counts`.
        self.cluster_id = ""
        config: dict[str, Any] = {
            **settings.librdkafka,
            "error_cb": self._remember,
            "log_level": 0,  # its complaints come through error_cb and the exceptions; the terminal is ours
        }
        self._servers = settings.bootstrap_servers
        try:
            self._admin = AdminClient(config)
        except KafkaException as error:
            raise CouldNotAuditError(f"Kafka's client refuses the settings: {_text(error)}") from error

    def _remember(self, error: KafkaError) -> None:
        self._last_error = error.str()

    def partition_counts(self) -> dict[str, int]:
        """Number of partitions of every topic that we may see. Asks for all: naming one could create it."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                seen = self._admin.list_topics(timeout=REQUEST_TIMEOUT)
                break
            except KafkaException as error:
                if self._answered and attempt < _ATTEMPTS and error.args[0].code() in _TRANSIENT:
                    time.sleep(_PAUSE)
                    continue
                reason = self._last_error or _text(error)
                raise CouldNotAuditError(
                    f"Kafka at {self._servers} can not be reached ({reason}): check --bootstrap-servers and --kafka",
                ) from error
        self._answered, self.cluster_id = True, str(seen.cluster_id)
        return {name: len(topic.partitions) for name, topic in seen.topics.items() if topic.error is None}

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset that retention has left in each partition."""
        return self._offsets(partitions, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """End of the log, open Kafka transactions included."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offset: the first offset of the oldest open Kafka transaction, else the high watermark."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_COMMITTED)

    def first_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Timestamp (ms) of the first record that is left in each partition; None when there is none."""
        found = self._list(partitions, _FIRST_RECORD, IsolationLevel.READ_UNCOMMITTED)
        return {key: answer.timestamp if answer.offset >= 0 else None for key, answer in found.items()}

    def offsets_at(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        """Offset of the first record of each partition that is not older than a time (ms); its end if there is none."""
        found = self._list(partitions, OffsetSpec.for_timestamp(max(0, ms)), IsolationLevel.READ_UNCOMMITTED)
        ends = self.high_watermarks(partitions)
        return {key: int(answer.offset) if answer.offset >= 0 else ends[key] for key, answer in found.items()}

    def cleanup_policies(self, topics: Collection[str]) -> dict[str, str | None]:
        """`cleanup.policy` of each topic; None where we have no right to see it."""

        def ask(names: Collection[str]) -> Iterable[tuple[str, Future[Any]]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            answers = self._admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT)
            return ((str(resource.name), future) for resource, future in answers.items())

        found = self._ask(sorted(topics), ask, lambda name: f"the configuration of {name}", {_NO_RIGHT: None})
        return {name: None if told is None else str(told["cleanup.policy"].value) for name, told in found.items()}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Kafka's id of each topic: another one after it was deleted and created again."""
        found = self._ask(sorted(topics), self._describe, lambda name: f"the id of {name}")
        return {name: str(told.topic_id) for name, told in found.items()}

    def forbidden(self, topics: Collection[str]) -> list[str]:
        """Those topics, of some that `partition_counts` does not tell of, that may exist: we have no right to know."""
        names = sorted(filter(None, topics))
        answers = dict.fromkeys(_NO_SUCH_TOPIC, "missing") | {_NO_RIGHT: "hidden"}
        found = self._ask(names, self._describe, lambda name: f"whether there is a topic {name}", answers)
        return [name for name in names if found[name] == "hidden"]

    def _describe(self, names: Collection[str]) -> Iterable[tuple[str, Future[Any]]]:
        # Naming a topic does not create it here.
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_TIMEOUT)
        return futures.items()

    def _offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> dict[TopicPartition, int]:
        return {key: int(answer.offset) for key, answer in self._list(partitions, spec, isolation).items()}

    def _list(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> dict[TopicPartition, Any]:
        def ask(keys: Collection[TopicPartition]) -> Iterable[tuple[TopicPartition, Future[Any]]]:
            wanted = {KafkaPartition(topic, partition): spec for topic, partition in keys}
            answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT)
            return (((asked.topic, asked.partition), future) for asked, future in answers.items())

        return self._ask(partitions, ask, lambda key: f"the offsets of {key[0]}/{key[1]}")

    def _ask(
        self,
        keys: Collection[_K],
        ask: Callable[[Collection[_K]], Iterable[tuple[_K, Future[Any]]]],
        what: Callable[[_K], str],
        answers: Mapping[int, Any] = MappingProxyType({}),
    ) -> dict[_K, Any]:
        """An answer for each key. Some errors (codes) are `answers`; after those that pass the question is repeated."""
        found: dict[_K, Any] = {}
        missing = list(keys)
        for attempt in range(1, _ATTEMPTS + 1):
            if not missing:
                break
            for key, future in ask(missing):
                try:
                    found[key] = future.result()
                except KafkaException as error:
                    code = error.args[0].code()
                    if code in answers:
                        found[key] = answers[code]
                    elif code not in _TRANSIENT or attempt == _ATTEMPTS:
                        raise self._explained(error, what(key)) from error
            missing = [key for key in missing if key not in found]
            if missing:
                time.sleep(_PAUSE)
        return found

    def _explained(self, error: KafkaException, what: str) -> CouldNotAuditError:
        reason = self._last_error if error.args[0].code() in _TRANSIENT and self._last_error else _text(error)
        return CouldNotAuditError(
            f"Kafka at {self._servers} does not tell {what} ({reason}): no verdict is possible without; check that all "
            "of its brokers are up and that you may read it",
        )


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """All partitions of a topic that has `count` of them."""
    return [(topic, partition) for partition in range(count)]


def _text(error: KafkaException) -> str:
    first = error.args[0]
    return first.str() if isinstance(first, KafkaError) else str(first)
