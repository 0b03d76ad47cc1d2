"""What the audit asks Kafka outside Spark: topics, log starts, ends, stable offsets, policies and topic ids."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

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
#: Requests that met an election or a restarting broker are repeated this often, a second apart.
_ATTEMPTS = 5

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
#: The first record that is not older than 1970, with its timestamp: the first one that is left.
_FIRST_RECORD: Any = OffsetSpec.for_timestamp(0)

_TRANSIENT = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001  (librdkafka's own name for a local time-out)
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
    },
)

#: What half messages name may be no topic's name at all.
_NO_SUCH_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})


class Cluster:
    """Metadata and offsets of one Kafka cluster. Every method raises CouldNotAuditError when Kafka does not answer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._last_error = ""
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
        try:
            topics = self._admin.list_topics(timeout=REQUEST_TIMEOUT).topics
        except KafkaException as error:
            reason = self._last_error or _text(error)
            raise CouldNotAuditError(
                f"Kafka at {self._servers} can not be reached ({reason}): check --bootstrap-servers and --kafka",
            ) from error
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

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

        def ask(names: list[str]) -> Mapping[ConfigResource, Future[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            return self._admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT)

        def policy(name: str, future: Future[Any]) -> str | None:
            try:
                entry = future.result()["cleanup.policy"]
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                raise self._explained(error, f"the configuration of {name}") from error
            return str(entry.value)

        if not topics:
            return {}
        answers = {resource.name: future for resource, future in ask(sorted(topics)).items()}
        return {name: policy(name, future) for name, future in answers.items()}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Kafka's id of each topic: another one after it was deleted and created again."""
        collection = TopicCollection(sorted(topics))
        futures = self._admin.describe_topics(collection, request_timeout=REQUEST_TIMEOUT)
        try:
            return {name: str(future.result().topic_id) for name, future in futures.items()}
        except KafkaException as error:
            raise self._explained(error, "the ids of the internal topics") from error

    def forbidden(self, topics: Collection[str]) -> list[str]:
        """Those topics, of some that `partition_counts` does not tell of, that may exist: we have no right to know."""
        names = sorted(filter(None, topics))
        if not names:
            return []
        # Naming a topic does not create it here.
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_TIMEOUT)
        found = []
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found.append(name)
                elif code not in _NO_SUCH_TOPIC:
                    raise self._explained(error, f"whether there is a topic {name}") from error
        return found

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
        if not partitions:
            return {}

        def ask(keys: Iterable[TopicPartition]) -> Mapping[KafkaPartition, Future[Any]]:
            wanted = {KafkaPartition(topic, partition): spec for topic, partition in keys}
            return self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT)

        answers: dict[TopicPartition, Any] = {}
        missing = list(partitions)
        for attempt in range(1, _ATTEMPTS + 1):
            transient: KafkaException | None = None
            for asked, future in ask(missing).items():
                try:
                    answers[asked.topic, asked.partition] = future.result()
                except KafkaException as error:
                    if error.args[0].code() not in _TRANSIENT or attempt == _ATTEMPTS:
                        raise self._explained(error, f"the offsets of {asked.topic}/{asked.partition}") from error
                    transient = error
            if transient is None:
                break
            missing = [key for key in missing if key not in answers]
            time.sleep(1)
        return answers

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
