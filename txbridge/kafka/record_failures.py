"""Delivery reports of one Kafka transaction, and the failures that they show, of a record or of a whole topic."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from txbridge.kafka import errors
from txbridge.kafka.errors import CONSEQUENCES, WHOLE_TOPIC, RecordFailure, RecordKind, RecordName
from txbridge.kafka.topic_lookup import TOO_LARGE


class _Failed(NamedTuple):
    kind: RecordKind
    topic: str
    partition: int | None
    which: RecordName
    error: KafkaError


class Reports:
    """The delivery reports of one Kafka transaction; complete when everything was flushed."""

    def __init__(self) -> None:
        self._failed: list[_Failed] = []
        # Records that librdkafka did not accept.
        self._not_accepted: list[_Failed] = []
        # Topics that took a record with a report of its own.
        self._taken: set[str] = set()
        # Partitions with a batch in which others than the culprits are reported as such (KIP-467). librdkafka does that
        # when a batch has several culprits. With a single one it reports the same error for all records of the batch.
        self._tells_culprits: set[tuple[str, int | None]] = set()
        self._incomplete = False
        # By topic, one message for each kind of error, and under None one that was stored. A method of a dict takes
        # these reports: a function in Python would cost a third as much as the whole delivery of a record.
        self._unnamed: dict[str, dict[KafkaError | None, Message]] = {}

    def of_topic(self, topic: str) -> Callable[[KafkaError | None, Message], None]:
        """Return a callback for reports of a topic's records. It keeps the errors, but not which records had them."""
        reports = self._unnamed[topic] = {}
        return reports.__setitem__

    def on_delivery(
        self,
        kind: RecordKind,
        which: RecordName,
        on_stored: Callable[[Message], None] | None,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        """Take the report of one record."""
        topic = message.topic() or ""
        if error is None:
            self._taken.add(topic)
            if on_stored is not None:
                on_stored(message)
        elif error.code() in CONSEQUENCES:
            # Not stored. So the transaction must not be committed, even if librdkafka would do it.
            self._incomplete = True
            if error.code() == errors.INVALID_DIFFERENT_RECORD:
                self._tells_culprits.add((topic, message.partition()))
        else:
            self._failed.append(_Failed(kind, topic, message.partition(), which, error))

    def note_refused(self, kind: RecordKind, topic: str, which: RecordName, error: KafkaError) -> None:
        """Note a record that librdkafka did not accept."""
        self._not_accepted.append(_Failed(kind, topic, None, which, error))

    @property
    def are_good(self) -> bool:
        """Whether every reported record was stored."""
        unnamed = any(error is not None for error in chain.from_iterable(self._unnamed.values()))
        return not (self._failed or self._not_accepted or self._incomplete or unnamed)

    @property
    def failures(self) -> list[RecordFailure]:
        """The failures of records that Kafka did not take. Unnamed records share one for each topic and error."""
        unnamed = [
            (_Failed(RecordKind.REAL, topic, None, None, error), None in reports)
            for topic, reports in self._unnamed.items()
            for error in reports
            if error is not None and error.code() not in CONSEQUENCES
        ]
        named_ones = [(one, one.topic in self._taken) for one in self._failed]
        return [
            *(self._failure_of(one, is_alone=True, in_part=False) for one in self._not_accepted),
            *(self._failure_of(one, is_alone=False, in_part=in_part) for one, in_part in (*named_ones, *unnamed)),
        ]

    def _failure_of(self, failed: _Failed, *, is_alone: bool, in_part: bool) -> RecordFailure:
        """The failure of one record. `is_alone`: it was in no batch. `in_part`: the topic took another record."""
        kind, topic, partition, which, error = failed
        code = error.code()
        too_large = code == KafkaError.MSG_SIZE_TOO_LARGE
        return RecordFailure(
            kind=kind,
            topic=topic,
            which=which,
            # As a message for which Kafka was not asked: it is the same reason.
            reason=TOO_LARGE if too_large else errors.named(error, "WRITE", f"topic {topic}").str(),
            whole_topic=code in WHOLE_TOPIC,
            # A missing partition is that of one record; it was in no batch.
            is_culprit=is_alone
            or (which is not None and (code == errors.UNKNOWN_PARTITION or (topic, partition) in self._tells_culprits)),
            too_large=too_large,
            timed_out=code == errors.MSG_TIMED_OUT,
            in_part=in_part,
        )
