"""The audit's requests to Kafka outside Spark: topics, log starts, ends, stable offsets, policies and topic ids."""
# ruff: noqa: SLF001  (the only names of the codes)

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.errors import CouldNotAuditError, ElectionError, KafkaAwayError
from txbridge_audit.judge.facts import TopicPartition

#: Longest wait for one answer, seconds. A healthy cluster answers in milliseconds.
REQUEST_TIMEOUT = 10.0
#: Longest wait for the very first answer, seconds. With the start of Python, a user who has misspelt the address waits
#: less than ten.
_FIRST_TIMEOUT = 7.0
#: A request that met an election, a restarting or a busy broker is repeated for _PATIENCE s, with pauses of _PAUSE s. A
#: broker that dies or stands still is replaced after broker.session.timeout.ms (9 s). Its answer is awaited for
#: REQUEST_TIMEOUT.
_PATIENCE, _PAUSE = 40.0, 1.0
#: Number of requests in _PATIENCE if the answers are quick.
_ATTEMPTS = round(_PATIENCE / _PAUSE)

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
#: The first record that is not older than 1970, with its timestamp. That is the first one that is left.
_FIRST_RECORD: Any = OffsetSpec.for_timestamp(0)
#: The offset in the answer when no record is that young. A lower number is no offset.
_NO_RECORD = -1

#: Numbers of the brokers' errors whose exception is a RetriableException in Kafka's own client
#: (`org.apache.kafka.common.protocol.Errors`; a test compares). A request is repeated after these and after the other
#: errors of _TRANSIENT.
RETRIABLE = frozenset(
    {
        *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
        *(100, 103, 106, 122, 123, 133),
    }
)
_TRANSIENT = RETRIABLE | {
    KafkaError.BROKER_NOT_AVAILABLE,
    # librdkafka's own: no answer in time, no connection, metadata that is out of date, or a partition without a leader
    # that is the only one that is asked about.
    *(KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN),
    *(KafkaError._RESOLVE, KafkaError._NOENT, KafkaError._WAIT_CACHE, KafkaError._WAIT_COORD, KafkaError._OUTDATED),
    *(KafkaError._UNKNOWN_BROKER, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),
    *(KafkaError._DESTROY_BROKER, KafkaError._RETRY, KafkaError._INTR),
}

_NO_LEADER = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

#: Answers for a topic that does not exist. A half message may name one whose name is not valid.
_NO_SUCH_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})
_NO_RIGHT = KafkaError.TOPIC_AUTHORIZATION_FAILED

_K = TypeVar("_K", bound=Hashable)


class AuditedCluster:
    """Metadata and offsets of one Kafka cluster. Every method raises CouldNotAuditError when Kafka does not answer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._errors: deque[KafkaError] = deque(maxlen=1)
        #: A cluster that has never answered is more likely misspelt than busy. That error is raised at once.
        self._answered = False
        #: Kafka's id of the cluster; empty until it has answered `partition_counts`.
        self.cluster_id = ""
        self._config: dict[str, Any] = {
            **settings.librdkafka,
            # Not a method: a client in a cycle keeps its threads until Python looks for cycles.
            "error_cb": self._errors.append,
            "log_level": 0,  # errors come through error_cb and exceptions; the terminal is ours
        }
        self._servers = settings.bootstrap_servers
        #: The highest epoch of the leaders that have answered with the end of a partition.
        self._epochs: dict[TopicPartition, int] = {}
        try:
            self._admin = AdminClient(self._config)
        except KafkaException as error:
            raise CouldNotAuditError(f"Kafka's client refuses the settings: {error.args[0].str()}") from error

    def _look_again(self) -> None:
        """Wait, and drop the known leaders: librdkafka asks a former leader, with its epoch, for up to 15 minutes."""
        time.sleep(_PAUSE)
        self._admin = AdminClient(self._config)

    def partition_counts(self) -> dict[str, int]:
        """Number of partitions of every topic that we may see. The request is for all: naming one could create it."""
        seen = self._ask_each(["topics"], self._list_topics, lambda _: "its topics")["topics"]
        self.cluster_id = str(seen.cluster_id)
        return {name: len(topic.partitions) for name, topic in seen.topics.items() if topic.error is None}

    def _list_topics(self, keys: Collection[str]) -> Iterable[tuple[str, Callable[[], Any]]]:
        timeout = REQUEST_TIMEOUT if self._answered else _FIRST_TIMEOUT
        return ((key, partial(self._admin.list_topics, timeout=timeout)) for key in keys)

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset that retention has left in each partition."""
        return self._ask_offsets(partitions, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """End of the log, open Kafka transactions included."""
        return self._ask_offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offset: the first offset of the oldest open Kafka transaction, else the high watermark."""
        return self._ask_offsets(partitions, _LATEST, IsolationLevel.READ_COMMITTED)

    def first_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Timestamp (ms) of the first record that is left in each partition; None when there is none."""
        found = self._list_offsets(partitions, _FIRST_RECORD, IsolationLevel.READ_UNCOMMITTED)
        return {key: answer.timestamp if answer.offset >= 0 else None for key, answer in found.items()}

    def offsets_at(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        """Offset of the first record of each partition that is not older than a time (ms); its end if there is none."""
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(max(0, ms)), IsolationLevel.READ_UNCOMMITTED)
        ends = self.high_watermarks(partitions)
        return {key: int(answer.offset) if answer.offset >= 0 else ends[key] for key, answer in found.items()}

    def forget_leaders(self) -> None:
        """Drop the known epochs. They may belong to topics that were deleted and created again since."""
        self._epochs.clear()

    def refuse_moved(self, partitions: Collection[TopicPartition]) -> None:
        """Raise ElectionError when a partition has another leader than when its end was asked for.

        A leader that was deposed while it stood still does not know that at once, and answers with its old end.
        """
        known = {key: self._epochs[key] for key in partitions if key in self._epochs}
        self._admin = AdminClient(self._config)
        with suppress(KafkaException):
            # A new client that must ask for ends before it has met a broker looks for leaders again only after 3 s.
            self._admin.list_topics(timeout=REQUEST_TIMEOUT)
        self.high_watermarks(known)
        moved = sorted(key for key, epoch in known.items() if self._epochs[key] > epoch)
        if moved:
            topic, partition = moved[0]
            raise ElectionError(
                f"{topic}/{partition} got another leader during the audit ({len(moved)} partitions did): "
                "what its end was is not certain; run it again"
            )

    def cleanup_policies(self, topics: Collection[str]) -> dict[str, str | None]:
        """`cleanup.policy` of each topic; None where we have no right to see it."""

        def ask(names: Collection[str]) -> Iterable[tuple[str, Callable[[], Any]]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            answers = self._admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT)
            return ((str(resource.name), future.result) for resource, future in answers.items())

        found = self._ask_each(sorted(topics), ask, lambda name: f"the configuration of {name}", {_NO_RIGHT: None})
        return {name: None if told is None else str(told["cleanup.policy"].value) for name, told in found.items()}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Kafka's id of each topic: another one after it was deleted and created again."""
        found = self._ask_each(sorted(topics), self._describe_topics, lambda name: f"the id of {name}")
        return {name: str(told.topic_id) for name, told in found.items()}

    def forbidden_topics(self, topics: Collection[str]) -> list[str]:
        """Those of the topics, all missing in `partition_counts`, that may exist: we have no right to see them."""
        names = sorted(filter(None, topics))
        answers = dict.fromkeys(_NO_SUCH_TOPIC, "missing") | {_NO_RIGHT: "hidden"}
        found = self._ask_each(names, self._describe_topics, lambda name: f"whether there is a topic {name}", answers)
        return [name for name in names if found[name] == "hidden"]

    def _describe_topics(self, names: Collection[str]) -> Iterable[tuple[str, Callable[[], Any]]]:
        # Naming a topic does not create it here.
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_TIMEOUT)
        return ((name, future.result) for name, future in futures.items())

    def _ask_offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        return {key: int(answer.offset) for key, answer in self._list_offsets(partitions, spec, isolation).items()}

    def _list_offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, Any]:
        def ask(keys: Collection[TopicPartition]) -> Iterable[tuple[TopicPartition, Callable[[], Any]]]:
            wanted = {KafkaPartition(topic, partition): spec for topic, partition in keys}
            answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT)
            return (((asked.topic, asked.partition), future.result) for asked, future in answers.items())

        def valid(key: TopicPartition, answer: Any) -> bool:
            # For a partition whose leader did not answer, librdkafka returns no error, but an invalid offset.
            if answer.offset < _NO_RECORD:
                return False
            if spec is not _LATEST:
                return True
            # In this answer the epoch is the leader's. One below a known epoch is that of a deposed leader.
            epoch = -1 if answer.leader_epoch is None else int(answer.leader_epoch)
            current = epoch >= self._epochs.get(key, -1)
            if current:
                self._epochs[key] = epoch
            return current

        return self._ask_each(partitions, ask, lambda key: f"the offsets of {key[0]}/{key[1]}", valid=valid)

    def _ask_each(
        self,
        keys: Collection[_K],
        ask: Callable[[Collection[_K]], Iterable[tuple[_K, Callable[[], Any]]]],
        what: Callable[[_K], str],
        answers: Mapping[int, Any] = MappingProxyType({}),
        valid: Callable[[_K, Any], bool] = lambda _key, _answer: True,
    ) -> dict[_K, Any]:
        """An answer for each key. Errors whose code is in `answers` count as these answers.

        After an error of _TRANSIENT, and after an answer that is not `valid`, the request is repeated.
        """
        found: dict[_K, Any] = {}
        missing, attempt, deadline = list(keys), 0, time.monotonic() + _PATIENCE
        while missing:
            attempt += 1
            last = attempt == _ATTEMPTS or time.monotonic() >= deadline
            for key, result in ask(missing):
                try:
                    answer = result()
                except KafkaException as error:
                    code = error.args[0].code()
                    if code in answers:
                        found[key] = answers[code]
                    elif code not in _TRANSIENT or last or not self._answered:
                        raise self._explain_error(error, what(key)) from error
                    continue
                self._answered = True
                if valid(key, answer):
                    found[key] = answer
                elif last:
                    raise self._explain_error(_NO_LEADER, what(key))
            missing = [key for key in missing if key not in found]
            if missing:
                self._look_again()
        return found

    def _explain_error(self, error: KafkaException, what: str) -> CouldNotAuditError:
        first: KafkaError = error.args[0]
        reason = (self._errors[0] if first.code() in _TRANSIENT and self._errors else first).str()
        if not self._answered:
            return CouldNotAuditError(
                f"Kafka at {self._servers} cannot be reached ({reason}): check --bootstrap-servers and --kafka"
            )
        return kind_of(first)(
            f"Kafka at {self._servers} does not tell {what} ({reason}): no verdict is possible without; check that all "
            "of its brokers are up and that you may read it"
        )


def kind_of(error: KafkaError) -> type[CouldNotAuditError]:
    """KafkaAwayError for an error that is over when Kafka is back."""
    return KafkaAwayError if error.code() in _TRANSIENT else CouldNotAuditError


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """All partitions of a topic that has `count` of them."""
    return [(topic, partition) for partition in range(count)]
