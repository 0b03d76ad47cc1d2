"""Prepare: half messages to Kafka, and word of each when it is stored."""

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

from txbridge.client.errors import PrepareError, explain
from txbridge.client.kafka.connection import Connection
from txbridge.client.kafka.producer import Wire
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.log import report
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
    #: ms; Kafka's append time.
    born: int
    #: Bytes of the user's key, value and headers.
    size: int

    def extended(self, message: Message) -> MessageExt:
        """What the listener gets."""
        return MessageExt.prepared(message, self.transaction_id, self.partition, self.offset, self.born)

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
        #: None once it was called.
        self.on_done: Report | None = on_done
        self.deadline = deadline

    def __call__(self, error: KafkaError | None, record: Record) -> None:
        self.on_delivery(self, error, record)

    def report(self, result: Prepared | PrepareError) -> None:
        """Once, however often it is called; what is interrupted by a signal may be called again."""
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
        #: Asked why nothing is acknowledged, so long before the deadline of the first that is not.
        self._shortage = shortage
        self._miss_before_s = miss_before_s
        self._watch = watch
        self._connection = connection
        self._topic = names.half
        self._group = group
        self._room = threading.Condition()
        self._waiting_for_room = 0
        self._after_reports: AfterReports | None = None
        #: In the order of their deadlines; those that are reported are taken out when they come first.
        self._expected: deque[_Delivery] = deque()
        #: What the handler of a signal has raised while a thread served, perhaps in the middle of a delivery report.
        self._interrupts: deque[BaseException] = deque()
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
        self,
        message: Message,
        transaction_id: str,
        on_done: Report,
        after_reports: AfterReports | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Begin an attempt. Raises BufferError when too much is on its way already, else `on_done` will be called.

        It is at the `deadline` (time.monotonic) if Kafka has said nothing by then. `after_reports` is one and the same
        for all attempts that have one.
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
            messages=len(message.messages) if isinstance(message, Several) else None,
            deliver_at=message.deliver_at,
        )
        size = len(message.value or b"") + message.key_and_headers_size
        delivery = _Delivery(self._on_delivery, transaction_id, size, on_done, deadline)
        try:
            self._wire.produce(self._topic, message.value, message.key, headers, delivery)
        except KafkaException as failure:
            # `after_reports` is called by who serves.
            delivery.report(self._failed(transaction_id, failure.args[0]))
        else:
            self._expected.append(delivery)
        self._serving.expect()

    @property
    def on_their_way(self) -> int:
        """How many half messages Kafka has not acknowledged, and some that were reported out of turn."""
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
        """What is not acknowledged by now fails."""
        self._serving.stop(self._wire.close)
        self._tell()

    def is_served_here(self) -> bool:
        """Whether this code is called by a delivery report or a callback of this writer's connection."""
        return self._serving.is_served_here

    def _serve(self, timeout: float) -> None:
        if self._interrupts:
            self._report_again()
        try:
            self._wire.serve(timeout)
        except BaseException as error:
            # First of all, and in one step: another one may follow. The next that serves, at the latest our thread,
            # takes care of the report.
            self._interrupts.append(error)
            # A caller that serves was interrupted, by the handler of a signal say, which may raise what it likes
            # (Celery's SoftTimeLimitExceeded is an Exception). No signal comes in our own thread, which must go on.
            if not isinstance(error, Exception) or not self._serving.is_own_thread:
                raise
            report(logging.ERROR, "kafka_callback_raised", exception=error)
        if self._expected:
            self._give_up_overdue()
        self._tell()

    def _report_again(self) -> None:
        """Repeat the delivery report that was interrupted by a signal: librdkafka takes it for made."""
        while self._interrupts:
            trace = self._interrupts[0].__traceback__
            while trace is not None:
                if trace.tb_frame.f_code is _Delivery.__call__.__code__:
                    given = trace.tb_frame.f_locals
                    given["self"](given["error"], given["record"])
                trace = trace.tb_next
            self._interrupts.popleft()

    def _give_up_overdue(self) -> None:
        """Fail what Kafka has said nothing about in time.

        librdkafka keeps the time-out of a message only as long as it waits in its queue: it may take it three times as
        long to report one that a broker has refused again and again.
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
            # The broker recognised a retry of a record that it stored long ago, and no longer knows where.
            delivery.report(self._failed(transaction_id, None))
            return
        if self._watch is not None and partition >= self._watch.partitions:
            # librdkafka has learnt of new partitions before anybody else: nobody will ever read this one.
            delivery.report(PrepareError(self._watch.found(partition + 1)))
            return
        delivery.report(Prepared(transaction_id, partition, offset, record.timestamp()[1], delivery.size))

    def _failed(self, transaction_id: str, error: KafkaError | None) -> PrepareError:
        why = self._shortage.reason if self._shortage is not None else ""
        if error is None:
            cause = "Kafka did not tell its offset; send again"
        else:
            cause = f"{error.str()} ({error.name()}); {why}, then send again" if why else explain(error)
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
