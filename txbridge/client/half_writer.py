"""Prepare: half messages to Kafka, and word of each when it is stored."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Record

from txbridge.client.connection import Connection
from txbridge.client.errors import PrepareError, explain
from txbridge.client.events import report
from txbridge.client.message import Message
from txbridge.client.serving import Serving, Waiter
from txbridge.client.wire import Wire
from txbridge.core.half_message import half_headers
from txbridge.core.names import Names, short_id


class Prepared(NamedTuple):
    """A half message that Kafka has acknowledged."""

    transaction_id: str
    partition: int
    offset: int
    #: ms; Kafka's append time.
    born: int
    #: Bytes of the user's key, value and headers.
    size: int

    def __repr__(self) -> str:
        # Knowing the transaction id is the right to decide.
        return f"Prepared(partition={self.partition}, offset={self.offset}, born={self.born}, size={self.size})"


#: Called once for each attempt, in the thread of the delivery reports: it must be quick and must not raise.
Report = Callable[[Prepared | PrepareError], None]
#: Called in that thread once some attempts were reported; the same holds for it.
AfterReports = Callable[[], None]


class _Delivery:
    """The delivery report of one half message.

    Not functools.partial of a method, which is four objects of those that make Python look for cycles: while thousands
    are in flight that was a good part of all work.
    """

    __slots__ = ("_on_delivery", "_on_done", "_size", "_transaction_id")

    def __init__(
        self,
        on_delivery: Callable[[str, int, Report, KafkaError | None, Record], None],
        transaction_id: str,
        size: int,
        on_done: Report,
    ) -> None:
        self._on_delivery = on_delivery
        self._transaction_id = transaction_id
        self._size = size
        self._on_done = on_done

    def __call__(self, error: KafkaError | None, record: Record) -> None:
        self._on_delivery(self._transaction_id, self._size, self._on_done, error, record)


class HalfWriter:
    """Writes half messages; thread-safe."""

    def __init__(self, wire: Wire, connection: Connection, names: Names, group: str, thread: str = "half") -> None:
        self._wire = wire
        self._connection = connection
        self._topic = names.half
        self._group = group
        self._room = threading.Condition()
        self._waiting_for_room = 0
        self._after_reports: AfterReports | None = None
        #: Once: each time it is looked up, a method is an object of its own.
        self._on_delivery = self._delivered
        self._serving = Serving(self._serve, f"txbridge-{thread}")

    def start(self) -> None:
        """Connect and start the thread."""
        self._wire.connect(self._topic)
        self._serving.start()

    def waiter(self) -> Waiter[Prepared | PrepareError]:
        """For a caller of `write` that waits for its report."""
        return Waiter(self._serving)

    def write(
        self, message: Message, transaction_id: str, on_done: Report, after_reports: AfterReports | None = None
    ) -> None:
        """Begin an attempt. Raises BufferError when too much is on its way already, else `on_done` will be called.

        `after_reports` is one and the same for all attempts that have one.
        """
        self._after_reports = after_reports
        headers = half_headers(
            message.headers,
            transaction_id=transaction_id,
            group=self._group,
            real_topic=message.topic,
            real_partition=message.partition,
            immunity_seconds=message.check_immunity_time,
            user_timestamp=message.timestamp,
        )
        size = len(message.value or b"") + message.key_and_headers_size
        try:
            self._wire.produce(
                self._topic,
                message.value,
                message.key,
                headers,
                _Delivery(self._on_delivery, transaction_id, size, on_done),
            )
        except KafkaException as failure:
            on_done(self._failed(transaction_id, failure.args[0]))
            self._tell()
        self._serving.expect()

    def wait_for_room(self, timeout: float) -> None:
        """Wait until a record has left librdkafka's queue; `timeout` in seconds."""
        with self._room:
            self._waiting_for_room += 1
            try:
                self._room.wait(timeout)
            finally:
                self._waiting_for_room -= 1

    def close(self) -> None:
        """What is not acknowledged by now fails."""
        self._serving.stop(self._wire.close)
        self._tell()

    def _serve(self, timeout: float) -> None:
        try:
            self._wire.serve(timeout)
        except Exception as error:  # noqa: BLE001  a user's error_cb, stats_cb or logger: whoever serves must go on
            report(logging.ERROR, "kafka_callback_raised", exception=error)
        self._tell()

    def _tell(self) -> None:
        if self._after_reports is not None:
            self._after_reports()

    def _delivered(
        self,
        transaction_id: str,
        size: int,
        on_done: Report,
        error: KafkaError | None,
        record: Record,
    ) -> None:
        if self._waiting_for_room:
            with self._room:
                self._room.notify_all()
        if error is not None:
            if error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001  its public name
                self._connection.gave_up("half messages", record.latency() or 0.0)
            on_done(self._failed(transaction_id, error))
            return
        self._connection.works()
        partition, offset = record.partition(), record.offset()
        if partition is None or offset is None or offset < 0:
            # The broker recognised a retry of a record that it stored long ago, and no longer knows where.
            on_done(self._failed(transaction_id, None))
            return
        on_done(Prepared(transaction_id, partition, offset, record.timestamp()[1], size))

    def _failed(self, transaction_id: str, error: KafkaError | None) -> PrepareError:
        cause = "Kafka did not tell its offset; send again" if error is None else explain(error)
        # Quiet, because the application gets the PrepareError.
        report(
            logging.DEBUG,
            "half_message_not_acknowledged",
            transaction=short_id(transaction_id),
            error=error.name() if error is not None else "no offset",
        )
        return PrepareError(
            f"the half message was not acknowledged by Kafka (topic {self._topic}), so the local transaction was not "
            f"run: {cause}",
            error,
        )
