"""The records of a Kafka transaction while they are produced, with the reports of what Kafka has taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from txbridge.core.half_message import size_of
from txbridge.core.names import Headers
from txbridge.kafka.errors import CONSEQUENCES, MSG_TIMED_OUT, QUEUE_FULL, RecordKind, RecordName, named
from txbridge.kafka.fenced_producer import TransactionFailedError, guarded
from txbridge.kafka.headers import offset_of
from txbridge.kafka.record_failures import Reports

OnStored = Callable[[Message], None]
#: A name by which its report is known, and topic, value, key, partition, timestamp (ms) and headers of a record.
Record = tuple[RecordName, str, Any, Any, int, int, Headers]
#: Bytes of a record beyond its size, for the lengths in it: those of fifty headers, too.
_RECORD_ROOM = 250


class ProducedRecords:
    """Produces records.

    `limits`: by topic, the bytes of records that may go together; others may have any size. `named`: each has a report
    of its own.
    """

    def __init__(
        self, producer: Producer, timeout_s: float, reports: Reports, limits: Mapping[str, int], *, named: bool = False
    ) -> None:
        self._producer = producer
        self._timeout_s = timeout_s
        self._reports = reports
        self._limits = limits
        self._named = named
        self._report_of: dict[str, Callable[[KafkaError | None, Message], None]] = {}
        # Bytes of a topic's records since the last flush.
        self._together: dict[str, int] = {}

    # `Any`, because confluent-kafka's types do not know a list whose values are bytes or None only.
    def deliver(
        self, which: RecordName, topic: str, value: Any, key: Any, partition: int, timestamp: int, headers: Any
    ) -> None:
        """Produce a user's message, without a report of its own if that is possible.

        Raises TransactionFailedError as soon as the transaction can only be aborted, KafkaException.
        """
        if self._named or topic in self._limits:
            self.produce_record(RecordKind.REAL, (which, topic, value, key, partition, timestamp, headers))
            return
        report = self._report_of.get(topic)
        if report is None:
            report = self._report_of[topic] = self._reports.of_topic(topic)
        while True:
            try:
                # Arguments by position: naming them takes half as long as the rest of the call. The report goes to
                # `callback`, an older name of `on_delivery`. With None for `callback`, `on_delivery` would be ignored.
                self._producer.produce(topic, value, key, partition, report, None, timestamp, headers)
            except BufferError:
                self._wait_for_room(RecordKind.REAL, topic, which)
            except KafkaException as error:
                self._note_refused(RecordKind.REAL, topic, which, error)
                return
            else:
                return

    def _wait_for_room(self, kind: RecordKind, topic: str, which: RecordName) -> None:
        """Wait for room in librdkafka's queue. Raises TransactionFailedError for a record that never has room."""
        if not len(self._producer):
            reason = "the record is larger than queue.buffering.max.kbytes"
            self._reports.note_refused(kind, topic, which, KafkaError(QUEUE_FULL, reason))
            raise TransactionFailedError
        # The queue needs time to send. If the broker is away, message.timeout.ms ends this wait.
        guarded(self._producer.poll, 0.1)

    def _note_refused(self, kind: RecordKind, topic: str, which: RecordName, error: KafkaException) -> None:
        """Note a record that librdkafka did not accept. Raises TransactionFailedError after an earlier error."""
        if error.args[0].code() in CONSEQUENCES:
            # An earlier error has failed this transaction.
            raise TransactionFailedError from error
        self._reports.note_refused(kind, topic, which, error.args[0])

    def produce_record(self, kind: RecordKind, record: Record, on_stored: OnStored | None = None) -> None:
        """Produce a record with a report of its own. Raises as `deliver`."""
        which, topic, value, key, partition, timestamp, headers = record
        limit = self._limits.get(topic)
        if limit is not None:
            together, size = self._together.get(topic, 0), size_of_record(record) + _RECORD_ROOM
            if together and together + size > limit:
                self.flush()
                together = 0
            self._together[topic] = together + size
        on_delivery = partial(self._reports.on_delivery, kind, which, on_stored)
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery, None, timestamp, [*headers])
            except BufferError:
                self._wait_for_room(kind, topic, which)
            except KafkaException as error:
                self._note_refused(kind, topic, which, error)
                return
            else:
                return

    def flush(self) -> None:
        """Wait until Kafka has all records. Raises TransactionFailedError if it has not taken them, KafkaException."""
        remaining = guarded(self._producer.flush, self._timeout_s)
        self._together = {}
        if remaining or not self._reports.are_good:
            raise TransactionFailedError


def store_record(
    producer: Producer, topic: str, value: bytes, partition: int, headers: Headers, timeout_s: float
) -> int:
    """Produce one record, and return its offset. Raises KafkaException, with MSG_TIMED_OUT if nobody has answered."""
    reports: list[tuple[KafkaError | None, Message]] = []
    producer.produce(
        topic,
        value=value,
        partition=partition,
        headers=[*headers],
        on_delivery=lambda error, message: reports.append((error, message)),
    )
    error: KafkaError | None = KafkaError(MSG_TIMED_OUT, "no answer")
    try:
        guarded(producer.flush, timeout_s)
        for error, message in reports:
            if error is None:
                return offset_of(message)
    except KafkaException as failure:
        # Kafka gives not even a producer id to a user without any right to write.
        error = failure.args[0]
    assert error is not None
    raise KafkaException(named(error, "WRITE", f"topic {topic}"))


def size_of_record(record: Record) -> int:
    """Bytes of key, value and headers."""
    _, _, value, key, _, _, headers = record
    return len(key or b"") + len(value or b"") + size_of(headers)
