"""Writer of half messages, which reports each one when Kafka has stored it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Record

from txbridge.client.base.log import report
from txbridge.client.errors import PrepareError, explain
from txbridge.client.kafka.connection import Connection
from txbridge.client.kafka.producer import Wire
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.message import Message, MessageExt
from txbridge.client.prepare.report_poller import Serving, Waiter
from txbridge.client.several_messages import Several
from txbridge.core.half_message import half_headers
from txbridge.core.names import Names, short_id
from txbridge.kafka.errors import MSG_TIMED_OUT

if TYPE_CHECKING:
    from txbridge.client.kafka.shortage import Shortage


class Prepared(NamedTuple):
    """A half message that Kafka has acknowledged."""

    transaction_id: str
    partition: int
    offset: int
    #: Kafka's append time (ms since 1970-01-01 UTC).
    born: int
    #: Bytes of the user's key, value and headers.
    size: int

    def extended(self, message: Message) -> MessageExt:
        """Return the message for the listener."""
        return MessageExt.prepared(message, self.transaction_id, self.partition, self.offset, self.born)

    def __repr__(self) -> str:
        # Without the transaction id, because anyone who knows it may decide.
        return f"Prepared(partition={self.partition}, offset={self.offset}, born={self.born}, size={self.size})"


#: Called once for each attempt, in the thread of the delivery reports: it must be quick and must not raise.
Report = Callable[[Prepared | PrepareError], None]
#: Called in that thread after some attempts were reported. It must be quick and must not raise.
AfterReports = Callable[[], None]


class _Delivery:
    """The callback for the delivery report of one half message.

    It is no functools.partial of a method, which is four objects that make Python look for cycles. While thousands are
    in flight that was a good part of all work.
    """

    __slots__ = ("deadline", "on_delivery", "on_done", "size", "transaction_id")

    def __init__(
        self,
        on_delivery: Callable[[_Delivery, KafkaError | None, Record], None],
        transaction_id: str,
        size: int,
        on_done: Report,
        deadline: float,
    ) -> None:
        self.on_delivery = on_delivery
        self.transaction_id = transaction_id
        self.size = size
        #: None after the report.
        self.on_done: Report | None = on_done
        self.deadline = deadline

    def __call__(self, error: KafkaError | None, record: Record) -> None:
        self.on_delivery(self, error, record)

    def report(self, result: Prepared | PrepareError) -> None:
        """Report the result, once. May be called again, also after a signal has interrupted it."""
        if self.on_done is not None:
            self.on_done(result)
            self.on_done = None


class HalfWriter:
    """Writes half messages; thread-safe."""

    def __init__(
        self,
        wire: Wire,
        connection: Connection,
        names: Names,
        group: str,
        thread: str = "half",
        shortage: Shortage | None = None,
        miss_before_s: float = 0.0,
        watch: TopicWatch | None = None,
    ) -> None:
        self._wire = wire
        #: Asked why nothing is acknowledged, `miss_before_s` seconds before the deadline of the oldest half message.
        self._shortage = shortage
        self._miss_before_s = miss_before_s
        self._watch = watch
        self._connection = connection
        self._topic = names.half
        self._group = group
        self._room = threading.Condition()
        self._waiting_for_room = 0
        self._after_reports: AfterReports | None = None
        #: Half messages in the order of their deadlines. A reported one is removed when it is the first.
        self._expected: deque[_Delivery] = deque()
        #: Exceptions from a serving thread, such as that of a signal handler, perhaps from inside a delivery report.
        self._interrupts: deque[BaseException] = deque()
        #: Stored once, because every access to a method makes an object.
        self._on_delivery = self._delivered
        self._serving = Serving(self._serve, f"txbridge-{thread}")

    def start(self) -> None:
        """Connect and start the thread."""
        self._wire.connect(self._topic)
        self._serving.start()

    def waiter(self) -> Waiter[Prepared | PrepareError]:
        """Return a waiter for a caller of `write` that waits for its report."""
        return Waiter(self._serving)

    def write(
        self,
        message: Message,
        transaction_id: str,
        on_done: Report,
        after_reports: AfterReports | None = None,
        deadline: float = math.inf,
        barrier_id: str | None = None,
    ) -> None:
        """Begin an attempt. Raises BufferError when too much is in flight already, else `on_done` will be called.

        If there is no report by the `deadline` (time.monotonic), `on_done` gets an error then. `after_reports` is the
        same for all attempts that have one.
        """
        if after_reports is not None:
            # Callers without it share this writer with callers that need it.
            self._after_reports = after_reports
        headers = half_headers(
            message.headers,
            transaction_id=transaction_id,
            group=self._group,
            real_topic=message.topic,
            real_partition=message.partition,
            immunity_seconds=message.check_immunity_time,
            user_timestamp=message.timestamp,
            messages=len(message.messages) if isinstance(message, Several) else None,
            deliver_at=message.deliver_at,
            barrier_id=barrier_id,
        )
        size = len(message.value or b"") + message.key_and_headers_size
        delivery = _Delivery(self._on_delivery, transaction_id, size, on_done, deadline)
        try:
            self._wire.produce(self._topic, message.value, message.key, headers, delivery)
        except KafkaException as failure:
            # The serving thread calls `after_reports`.
            delivery.report(self._failed(transaction_id, failure.args[0]))
        else:
            self._expected.append(delivery)
        self._serving.expect()

    @property
    def on_their_way(self) -> int:
        """Number of half messages without an acknowledgement, and of some that were reported out of order."""
        return len(self._expected)

    def wait_for_room(self, timeout: float) -> None:
        """Wait until a record has left librdkafka's queue; `timeout` in seconds."""
        with self._room:
            self._waiting_for_room += 1
            try:
                self._room.wait(timeout)
            finally:
                self._waiting_for_room -= 1

    def close(self) -> None:
        """Fail half messages that are not acknowledged by now."""
        self._serving.stop(self._wire.close)
        self._tell()

    def is_served_here(self) -> bool:
        """Whether a delivery report or a callback of this writer's connection calls this."""
        return self._serving.is_served_here

    def _serve(self, timeout: float) -> None:
        if self._interrupts:
            self._report_again()
        try:
            self._wire.serve(timeout)
        except BaseException as error:
            # First of all, and in one step, because another exception may follow. The next serving thread, at the
            # latest our own, repeats the report.
            self._interrupts.append(error)
            # A caller that serves was interrupted, for example by a signal handler, which may raise anything (Celery's
            # SoftTimeLimitExceeded is an Exception). Our own thread gets no signals, and must go on.
            if not isinstance(error, Exception) or not self._serving.is_own_thread:
                raise
            report(logging.ERROR, "kafka_callback_raised", exception=error)
        if self._expected:
            self._give_up_overdue()
        self._tell()

    def _report_again(self) -> None:
        """Repeat delivery reports that were interrupted by a signal. librdkafka does not repeat them."""
        while self._interrupts:
            trace = self._interrupts[0].__traceback__
            while trace is not None:
                if trace.tb_frame.f_code is _Delivery.__call__.__code__:
                    given = trace.tb_frame.f_locals
                    given["self"](given["error"], given["record"])
                trace = trace.tb_next
            self._interrupts.popleft()

    def _give_up_overdue(self) -> None:
        """Fail half messages that Kafka has not reported by their deadlines.

        librdkafka applies the time-out of a message only while the message waits in its queue. It may take three times
        as long to report a message that a broker has refused again and again.
        """
        now = time.monotonic()
        while self._expected:
            first = self._expected[0]
            if first.on_done is not None:
                if self._shortage is not None and first.deadline - now < self._miss_before_s:
                    self._shortage.look()
                if now < first.deadline:
                    return
                first.report(self._failed(first.transaction_id, KafkaError(MSG_TIMED_OUT)))
            self._expected.popleft()

    def _tell(self) -> None:
        if self._after_reports is not None:
            self._after_reports()

    def _delivered(self, delivery: _Delivery, error: KafkaError | None, record: Record) -> None:
        transaction_id = delivery.transaction_id
        if self._waiting_for_room:
            with self._room:
                self._room.notify_all()
        if error is not None:
            if error.code() == MSG_TIMED_OUT:
                self._connection.gave_up("half messages", record.latency() or 0.0)
            delivery.report(self._failed(transaction_id, error))
            return
        self._connection.works()
        partition, offset = record.partition(), record.offset()
        if partition is None or offset is None or offset < 0:
            # The broker recognised a retry of a record that it stored long ago, and no longer knows its offset.
            delivery.report(self._failed(transaction_id, None))
            return
        if self._watch is not None and partition >= self._watch.partitions:
            # librdkafka has learnt of new partitions before TopicWatch. No worker will ever read this half message.
            delivery.report(PrepareError(self._watch.found(partition + 1)))
            return
        delivery.report(Prepared(transaction_id, partition, offset, record.timestamp()[1], delivery.size))

    def _failed(self, transaction_id: str, error: KafkaError | None) -> PrepareError:
        why = self._shortage.reason if self._shortage is not None else ""
        if error is None:
            cause = "Kafka did not tell its offset; send again"
        else:
            cause = f"{error.str()} ({error.name()}); {why}, then send again" if why else explain(error)
        # Level DEBUG, because the application gets the PrepareError.
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
