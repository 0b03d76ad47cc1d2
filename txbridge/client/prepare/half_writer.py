"""Writers of half messages, which report each one when Kafka has stored it.

A client has several, because the linger is a setting of a librdkafka producer.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Record

from txbridge.client.base.contained import contained
from txbridge.client.base.log import report
from txbridge.client.base.process import join
from txbridge.client.errors import PrepareError
from txbridge.client.kafka.connection import KafkaConnection, LastingProducer
from txbridge.client.kafka.topic_watch import TopicDiagnosis, TopicWatch
from txbridge.client.message import Message
from txbridge.client.message_batch import MessageBatch
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.half_message import half_headers
from txbridge.core.names import Names, short_id
from txbridge.errors import UsageError
from txbridge.kafka.errors import MSG_TIMED_OUT, PURGE_QUEUE

#: Longest wait (s) for a report. A report wakes the thread at once, so this only bounds the delay until a close or an
#: overdue half message is noticed.
_POLL_S = 0.2


#: Called once for each attempt, in the thread of the delivery reports: it must be quick and must not raise.
Report = Callable[[Prepared | PrepareError], None]


@dataclass(slots=True, eq=False)
class _HalfDelivery:
    """The callback for the delivery report of one half message.

    It is no functools.partial of a method, which is four objects that make Python look for cycles. While thousands are
    in flight that was a good part of all work.
    """

    on_delivery: Callable[[_HalfDelivery, KafkaError | None, Record], None]
    transaction_id: str
    size: int
    #: None after the report.
    on_done: Report | None
    deadline: float

    def __call__(self, error: KafkaError | None, record: Record) -> None:
        self.on_delivery(self, error, record)

    def report_once(self, result: Prepared | PrepareError) -> None:
        """Report the result, unless one was reported already."""
        if self.on_done is not None:
            self.on_done(result)
            self.on_done = None


def headers_of(
    message: Message, transaction_id: str, group: str, barrier_id: str | None
) -> list[tuple[str, bytes | None]]:
    """Return the headers of the half message that holds the message."""
    return half_headers(
        message.headers,
        transaction_id=transaction_id,
        group=group,
        real_topic=message.topic,
        real_partition=message.partition,
        immunity_seconds=message.check_immunity_time,
        user_timestamp=message.timestamp,
        messages=len(message.messages) if isinstance(message, MessageBatch) else None,
        deliver_at=message.deliver_at,
        barrier_id=barrier_id,
    )


class HalfWriter:
    """Writes half messages, and takes their delivery reports in a thread of its own; thread-safe.

    Python runs signal handlers in the main thread alone. So no exception of a handler can hit a delivery report, which
    librdkafka would not repeat.
    """

    def __init__(
        self,
        producer: LastingProducer,
        connection: KafkaConnection,
        names: Names,
        group: str,
        thread: str,
        diagnosis: TopicDiagnosis,
        miss_before_s: float,
        watch: TopicWatch,
    ) -> None:
        self._producer = producer
        #: Asked why nothing is acknowledged, `miss_before_s` seconds before the deadline of the oldest half message.
        self._diagnosis = diagnosis
        self._miss_before_s = miss_before_s
        self._watch = watch
        self._connection = connection
        self._topic = names.half
        self._group = group
        #: Called in the thread of the delivery reports, after some of them. It must be quick and must not raise.
        self.after_reports: Callable[[], None] | None = None
        #: Half messages in the order of their deadlines. A reported one is removed when it is the first.
        self._expected: deque[_HalfDelivery] = deque()
        #: Acknowledgements that wait until the cluster is recognised.
        self._unsure: deque[tuple[_HalfDelivery, Record]] = deque()
        #: Stored once, because every access to a method makes an object.
        self._on_delivery = self._take_report
        #: Set when half messages leave at once, or when it has tried to connect for as long as `connect` does.
        self.connected = threading.Event()
        self._is_stopping = False
        #: Delivery reports and the callbacks of the connection run in it.
        self.thread = threading.Thread(target=self._run, name=f"txbridge-{thread}", daemon=True)

    def start(self) -> None:
        """Start the thread, which connects first. May be called again if it was interrupted."""
        if self.thread.ident is None:
            self.thread.start()

    @property
    def _refusal(self) -> str:
        """Why nothing may be sent: no worker of ours would ever read it. Empty if it may."""
        return self._connection.refusal or self._watch.refusal

    def write_half(
        self,
        message: Message,
        transaction_id: str,
        on_done: Report,
        deadline: float = math.inf,
        barrier_id: str | None = None,
    ) -> None:
        """Begin an attempt. Raises BufferError when too much is in flight already, else `on_done` will be called.

        Raises PrepareError if cluster or HALF are others than at the start. If there is no report by the `deadline`
        (time.monotonic), `on_done` gets an error then.
        """
        if self._refusal:
            raise PrepareError(self._refusal)
        headers = headers_of(message, transaction_id, self._group, barrier_id)
        delivery = _HalfDelivery(self._on_delivery, transaction_id, message.size, on_done, deadline)
        try:
            self._producer.produce(self._topic, message.value, message.key, headers, delivery)
        except KafkaException as failure:
            # The thread calls `after_reports`.
            delivery.report_once(self._log_failure(transaction_id, failure.args[0]))
        else:
            self._expected.append(delivery)

    @property
    def on_their_way(self) -> int:
        """Number of half messages without an acknowledgement, and of some that were reported out of order."""
        return len(self._expected)

    def stop(self) -> None:
        """Let the thread end. Returns at once."""
        self._is_stopping = True

    def close(self) -> None:
        """Fail half messages that are not acknowledged by now. May be called again if it was interrupted."""
        self.stop()
        join(self.thread)

    def _run(self) -> None:
        # Callers wait for this thread without a limit.
        contained(self._producer.connect)(self._topic)
        self.connected.set()
        serve_once = contained(self._serve_once)
        while not self._is_stopping:
            serve_once()
        contained(self._producer.close)()
        while self._expected:
            delivery = self._expected.popleft()
            if delivery.on_done is not None:
                # Only if the close has failed, or has taken too long.
                contained(delivery.report_once)(self._log_failure(delivery.transaction_id, KafkaError(PURGE_QUEUE)))
        if self.after_reports is not None:
            contained(self.after_reports)()

    def _serve_once(self) -> None:
        """Take the delivery reports that are there, or the next one.

        A caller that got its report needs the interpreter's lock, which this thread has until it waits again. So each
        step here costs the rate of a caller that is alone: a lock and a look at the clock took a sixth of it.
        """
        try:
            self._producer.serve_reports(_POLL_S)
        finally:
            while self._unsure and not self._connection.is_unsure:
                delivery, record = self._unsure.popleft()
                self._take_report(delivery, None, record)
            while self._expected and self._expected[0].on_done is None:
                self._expected.popleft()
            if self._expected:
                self._give_up_overdue()
            if self.after_reports is not None:
                self.after_reports()

    def _give_up_overdue(self) -> None:
        """Fail half messages that Kafka has not reported by their deadlines.

        librdkafka applies the time-out of a message only while the message waits in its queue. It may take three times
        as long to report a message that a broker has refused again and again.
        """
        now = time.monotonic()
        while self._expected:
            first = self._expected[0]
            if first.on_done is not None:
                if first.deadline - now < self._miss_before_s:
                    self._diagnosis.look_soon()
                if now < first.deadline:
                    return
                first.report_once(self._log_failure(first.transaction_id, KafkaError(MSG_TIMED_OUT)))
            self._expected.popleft()

    def _take_report(self, delivery: _HalfDelivery, error: KafkaError | None, record: Record) -> None:
        transaction_id = delivery.transaction_id
        if error is not None:
            if error.code() == MSG_TIMED_OUT:
                self._connection.note_time_out("half messages", record.latency() or 0.0)
            delivery.report_once(self._log_failure(transaction_id, error))
            return
        if self._connection.is_unsure:
            # This may be a broker of another cluster.
            self._unsure.append((delivery, record))
            return
        self._connection.note_answer()
        partition, offset = record.partition(), record.offset()
        if partition is None or offset is None or offset < 0:
            # The broker recognised a retry of a record that it stored long ago, and no longer knows its offset.
            delivery.report_once(self._log_failure(transaction_id, None))
            return
        if partition >= self._watch.partitions:
            # librdkafka has learnt of new partitions before TopicWatch.
            self._watch.note_partitions(partition + 1)
        if self._refusal:
            delivery.report_once(PrepareError(self._refusal))
            return
        delivery.report_once(Prepared(transaction_id, partition, offset, record.timestamp()[1], delivery.size))

    def _log_failure(self, transaction_id: str, error: KafkaError | None) -> PrepareError:
        if error is None:
            cause = "Kafka did not return its offset; send again"
        elif why := self._diagnosis.reason:
            cause = f"{error.str()} ({error.name()}); {why}, then send again"
        else:
            cause = self._connection.explain_error(error)
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


#: Linger (ms) by the name of the writer's thread: the time that half messages wait for others, to share a request.
_LINGER_MS = {
    # A caller waits for its own message. While few do, hardly any other message would come.
    "half": 0.0,
    "half-2": 0.0,
    "half-3": 0.0,
    "half-4": 0.0,
    # Many callers wait, each for its own message. Half of the time that Kafka takes, so that callers whose messages
    # were acknowledged together share a request again.
    "half-callers": 0.5,
    # No caller waits for a single message. The default of Kafka's own producer (KIP-1030).
    "half-many": 5.0,
}
*_FOR_CALLERS, _FOR_MANY = _LINGER_MS
#: Half messages in flight from which on a caller takes the next writer. An idempotent librdkafka producer sends at once
#: while fewer than five of a partition are in flight. It asks without a pause whether one that waits behind five may
#: go, which takes up to a whole processor. One less, because several threads choose at the same moment. With 15 threads
#: and a round trip of 3 ms, one writer without a linger instead of four takes a sixth from the rate.
_BUSY_FROM = 4
#: Running transactions from which on all callers share the last writer, which lingers. Otherwise half of the messages
#: of 32 threads would leave from the four others in small requests, and five threads would wake for their reports.
_MANY_FROM = 16
#: Local transactions under way from which on they share it, too, if no more than four callers wait for half messages:
#: more would wait behind five. Such local transactions take longer than the linger. With 8 threads and PostgreSQL,
#: sharing takes a seventh from the processor time of the service and a twelfth from Kafka's. Callers with next to no
#: local transaction, whom the count leaves alone, would lose half of their rate.
_LOCAL_FROM = 4


class HalfWriters:
    """Writers of half messages, each of them made when it is first needed; thread-safe.

    `new` makes a writer from its linger (ms) and the name of its thread.
    """

    def __init__(self, new: Callable[[float, str], HalfWriter]) -> None:
        self._new = new
        #: Held while a writer is made.
        self._lock = threading.Lock()
        self._is_closed = False
        first = _FOR_CALLERS[0]
        self._first = new(_LINGER_MS[first], first)
        #: Those that are made so far, by the name of the thread.
        self.writers = {first: self._first}

    def start(self) -> None:
        """Connect the first writer."""
        self._first.start()
        self._first.connected.wait()

    def for_caller(self, running: int, local: int) -> HalfWriter:
        """Return the writer for a half message that its caller waits for.

        So many transactions are `running`, and so many of these are in their `local` transactions.
        """
        writer = self._first
        shares = running >= _MANY_FROM or (local >= _LOCAL_FROM and running - local <= _BUSY_FROM)
        for name in _FOR_CALLERS[-1:] if shares else _FOR_CALLERS:
            writer = self.writers.get(name) or self._make_writer(name)
            if not writer.connected.is_set():
                return self._first
            if writer.on_their_way < _BUSY_FROM:
                break
        return writer

    def for_many(self, *, waits: bool) -> HalfWriter:
        """Return the writer for half messages that no caller waits for by itself.

        It may have to be connected first. A caller that does not wait for that gets another writer.
        """
        writer = self.writers.get(_FOR_MANY)
        if writer is None or not writer.connected.is_set():
            writer = self._make_writer(_FOR_MANY)
            if not (waits or writer.connected.is_set()):
                return self._first
            writer.connected.wait()
        return writer

    def close(self) -> None:
        """Fail half messages that are not acknowledged by now. May be called again."""
        with self._lock:
            self._is_closed = True
        for writer in self.writers.values():
            writer.stop()
        for writer in self.writers.values():
            writer.close()

    def _make_writer(self, name: str) -> HalfWriter:
        with self._lock:
            if self._is_closed:
                # Nobody would close another one.
                return self._first
            if name not in self.writers:
                try:
                    self.writers[name] = self._new(_LINGER_MS[name], name)
                except UsageError as error:
                    # They were right at the start. By now a key file is unreadable, or no more threads can be started.
                    report(logging.ERROR, "half_writer_not_made", writer=name, reason=error, next="using the first one")
                    self.writers[name] = self._first
            writer = self.writers[name]
            # Here, because a signal may have interrupted the call that has made it.
            writer.start()
            return writer
