"""The send path: the steps of a transaction, which the blocking, the pipelined and the asyncio API share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from txbridge.client.answers import LocalTransactionState
from txbridge.client.base import process
from txbridge.client.base.log import report
from txbridge.client.decide.decision_batcher import Ticket, settled_ticket
from txbridge.client.errors import PrepareError, started_before_a_fork
from txbridge.client.flow.attempts import PAUSE_S, Attempts
from txbridge.client.listener import ListenerOutcome, TransactionListener
from txbridge.client.message import NO_HALF, Message, MessageExt, MessageLimits, check_limits, new_transaction_id
from txbridge.client.prepare.half_writer import HalfWriters
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.decision_record import Decision, DecisionEntry, Source
from txbridge.core.names import is_barrier_id
from txbridge.deadline import Deadline
from txbridge.errors import UsageError
from txbridge.kafka.errors import QUEUE_FULL

if TYPE_CHECKING:
    from txbridge.client.checks.calls import CheckRequest
    from txbridge.client.decide.decision_sender import DecisionSender
    from txbridge.client.kafka.topic_watch import RealTopics, TopicWatch
    from txbridge.client.metrics import GroupMetrics
    from txbridge.client.options import ClientOptions
    from txbridge.client.prepare.half_writer import HalfWriter, Report
from functools import partial
from typing import TYPE_CHECKING

from txbridge import tracing
from txbridge.client.base.contained import contained
from txbridge.client.message_batch import with_headers
from txbridge.client.prepare.half_writer import Report
from txbridge.core.names import short_id
from txbridge.masking import masked

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer


#: Seconds after message.timeout.ms until a half message without a report is given up. librdkafka looks for overdue
#: messages once a second, and its own report is the better answer.
REPORT_MARGIN_S = 1.0

_NO_ROOM_FOR_ENDS = (
    "too many decisions wait for Kafka's acknowledgement, so no new transaction was begun; check the brokers "
    "of the END topic, then send again"
)
_NO_ROOM_FOR_HALF_MESSAGES = (
    "librdkafka's queue stayed full (queue.buffering.max.messages, .kbytes), so no new transaction was "
    "begun; check the brokers, then send again"
)


class SendPath:
    """The steps of a transaction, in this order. Each API waits between them in its own way. Thread-safe.

    1. `admit_message` refuses a message that these topics cannot take, and returns the transaction id.
    2. `ask_barrier` asks the listener for the barrier table that the half message names.
    3. `attempts.begin_attempt` notes that the transaction runs, so that a check finds it running.
    4. `halves` chooses the writer of the half message, and `hand_over` gives it the message.
    5. `require_stored` takes Kafka's report. Without an acknowledgement it gives the transaction up. If the listener
       has an outbox, the local transaction then stores the message; while Kafka is known to be away, at once.
    6. The local transaction runs between begin and end of an `Undecided`, which sends its decision, also if it was
       interrupted.
    7. `finish_attempt` ends the attempt in every case.

    A check of the transaction is answered by `known_outcome` or the application, and `send_answer`.
    """

    def __init__(
        self,
        options: ClientOptions,
        limits: MessageLimits,
        prepare_timeout: float,
        halves: HalfWriters,
        ends: DecisionSender,
        watch: TopicWatch,
        real_topics: RealTopics,
        is_connected: Callable[[], bool] = lambda: True,
    ) -> None:
        #: What these topics can take.
        self.limits = limits
        #: Seconds until a half message that is not acknowledged is given up.
        self._prepare_timeout = prepare_timeout
        #: The transactions that run in this process, and those given up.
        self.attempts = Attempts()
        #: The writers of half messages.
        self.halves = halves
        self._ends = ends
        self._watch = watch
        #: What is known of real topics.
        self.real_topics = real_topics
        #: Measure and trace each transaction.
        self._watchers: list[GroupMetrics | ClientTracing] = [ClientTracing(options.group)]
        if options.metrics is not None:
            self._watchers.insert(0, options.metrics.of_group(options.group))
        self._forwarding = options.forwarding
        if self._forwarding is not None:
            self._forwarding.connect(options.group, self.send_commit_again)
        self._is_connected = is_connected
        #: Identity of the listener's barrier table, for every half message; None while the listener states none.
        self._barrier_id: str | None = None
        self._process = process.generation()
        #: Held by the thread that looks for room.
        self._room = threading.Lock()

    def require_this_process(self) -> None:
        """Raise UsageError after a fork: librdkafka's threads do not exist in the child."""
        if self._process != process.generation():
            raise started_before_a_fork()

    def admit_message(self, message: Message) -> str:
        """Return the id of a new transaction. Raises UsageError if this client cannot send the message."""
        self.require_this_process()
        check_limits(message, self.limits)
        return new_transaction_id()

    def ask_barrier(self, listener: TransactionListener) -> None:
        """Ask the listener for the barrier table that half messages name. The first time it may read its database.

        Raises what the listener raises: nothing was sent. Raises UsageError for a listener that cannot work.
        """
        if type(listener).barrier_id is TransactionListener.barrier_id:
            # Most listeners have none. An exception of a signal handler must not count as one of theirs.
            return
        self.note_barrier(listener.barrier_id())

    def note_barrier(self, found: str | None) -> None:
        """Name this barrier table in half messages from now on. Raises UsageError if that is no identity."""
        if found is None:
            return
        if not isinstance(found, str) or not is_barrier_id(found):
            raise UsageError(
                f"barrier_id() returned {found!r}: it takes None, or 1 to 64 characters of A-Z a-z 0-9 . _ -"
            )
        self._barrier_id = found

    def writer_for_caller(self) -> HalfWriter:
        """Return the writer for a half message that its caller waits for."""
        return self.halves.for_caller(self.attempts.running, self.attempts.local)

    def hand_over(
        self, writer: HalfWriter, message: Message, transaction_id: str, on_done: Report
    ) -> Iterator[Callable[[], object] | None]:
        """Give the half message to the writer. Yields what the caller must do before: call this, or pause if None.

        Nothing to call comes after a None. All of it takes as long as an acknowledgement may. Raises PrepareError after
        that, and if cluster or HALF are others than at the start. Raises UsageError for a timestamp that the real topic
        refuses.
        """
        deadline = Deadline(self._prepare_timeout)
        if any(one.timestamp is not None for one in message.messages):
            if (look := self.real_topics.look_up(message, deadline.left)) is not None:
                yield look
            self.real_topics.require_taken(message)
        while not self._ends.has_room:
            if deadline.is_over:
                raise PrepareError(_NO_ROOM_FOR_ENDS, KafkaError(QUEUE_FULL))
            yield None
        for one in message.messages:
            self._watch.note_topic(one.topic)
        for watcher in self._watchers:
            message, on_done = watcher.watch_prepare(transaction_id, message, on_done)
        give_up_at = deadline.at + REPORT_MARGIN_S
        while True:
            try:
                writer.write_half(message, transaction_id, on_done, give_up_at, self._barrier_id)
            except BufferError:
                if deadline.is_over:
                    raise PrepareError(_NO_ROOM_FOR_HALF_MESSAGES, KafkaError(QUEUE_FULL)) from None
                yield None
            else:
                return

    def stores_message(self) -> bool:
        """Whether a message goes into the listener's outbox without an attempt to send it: Kafka is away.

        Or it answers and takes no half messages, as when too few replicas are in sync. Then a caller tries at times.
        """
        if self._forwarding is None:
            return False
        return not self._is_connected() or self._forwarding.skips_half()

    def require_stored(self, transaction_id: str, result: Prepared | PrepareError) -> Prepared:
        """Return the report of a stored half message, or what stands for it when the listener will store the message.

        Otherwise give the attempt up and raise PrepareError.
        """
        if isinstance(result, PrepareError):
            self.attempts.give_up(transaction_id)
            if self._forwarding is None or not result.passes:
                raise result
            self._forwarding.note_half(is_stored=False)
            result = Prepared.without_half()
        self.attempts.note_stored(transaction_id)
        return result

    def send_decision(self, prepared: Prepared, outcome: ListenerOutcome, message: Message | None = None) -> Ticket:
        """Queue the decision of a local transaction, whose `message` is needed if it may be a commit."""
        entry = prepared.entry_of(outcome)
        if prepared.offset == NO_HALF:
            return settled_ticket(entry)
        end = self._submit_end(prepared.partition, entry, Source.CLIENT, prepared.size)
        if self._forwarding is not None:
            self._forwarding.note_half(is_stored=True)
            if message is not None and entry.decision is Decision.COMMIT:
                self._forwarding.note_commit(message, prepared[:3], end)
        return end

    def known_outcome(self, message: MessageExt) -> ListenerOutcome | None:
        """Return the outcome of a checked transaction that this process knows. None: ask the application."""
        verdict = self.attempts.verdict_of(message.transaction_id)
        return None if verdict is None else ListenerOutcome(LocalTransactionState(verdict))

    def send_answer(self, request: CheckRequest, outcome: ListenerOutcome) -> Ticket:
        """Queue the answer to a check."""
        message = request.message
        report(logging.DEBUG, "check_answered", **message.log_fields, state=outcome.state.name)
        entry = DecisionEntry(
            message.half_offset, message.transaction_id, outcome.decision, message.check_times, outcome.remark
        )
        return self._submit_end(message.half_partition, entry, Source.CHECK, request.size, message)

    def _submit_end(
        self, partition: int, entry: DecisionEntry, source: Source, size: int, checked: MessageExt | None = None
    ) -> Ticket:
        end = self._ends.submit_command(partition, entry, source, size)
        for watcher in self._watchers:
            watcher.watch_end(partition, source, end, checked)
        return end

    def send_commit_again(self, transaction_id: str, half_partition: int, half_offset: int) -> Future[None]:
        """Send the END of a transaction that is committed, as Kafka may not have it.

        It changes nothing if the END was sent already, because the first decision counts. The future resolves as that
        of a TransactionSendResult. It is no decision of this client, so metrics do not count it.
        """
        entry = DecisionEntry(half_offset, transaction_id, Decision.COMMIT)
        end = self._ends.submit_command(half_partition, entry, Source.CLIENT, 0)
        end.leave_soon()
        return end.as_future()

    def finish_attempt(self, transaction_id: str) -> None:
        """End an attempt that is decided or given up."""
        self.attempts.finish_attempt(transaction_id)
        for watcher in self._watchers:
            watcher.forget_attempt(transaction_id)

    def write_half(self, writer: HalfWriter, message: Message, transaction_id: str, on_done: Report) -> None:
        """Do as `hand_over`, in a thread that may block."""
        looks = self.hand_over(writer, message, transaction_id, on_done)
        for look in looks:
            if look is not None:
                look()
                continue
            with self._room:
                for _ in looks:
                    time.sleep(PAUSE_S)

    def prepare_half(self, message: Message, transaction_id: str) -> Prepared:
        """Store the half message and wait for that, as `require_stored` says."""
        if self.stores_message():
            return Prepared.without_half()
        result: Prepared | PrepareError
        try:
            writer = self.writer_for_caller()
            reports: SimpleQueue[Prepared | PrepareError] = SimpleQueue()
            self.write_half(writer, message, transaction_id, reports.put)
            # Every record is reported, at the latest at its deadline.
            result = reports.get()
        except PrepareError as error:
            result = error
        except BaseException:
            # Interrupted. Kafka may still store the half message, but no local transaction will run.
            self.attempts.give_up(transaction_id)
            raise
        return self.require_stored(transaction_id, result)


#: A failure of the application's SDK costs spans alone.
_costs_spans = partial(contained, event="spans_not_recorded", level=logging.WARNING)


class ClientTracing:
    """Traces the transactions of one producer, by the spans `prepare` and `decide`; thread-safe.

    The parent of `prepare` is the trace context in the message, or else that of the caller. The parent of `decide` is
    `prepare`, or in a check the context in the message.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        #: Context of `prepare` and real topic of each running transaction.
        self._prepared: dict[str, tuple[Context, str]] = {}

    def watch_prepare(self, transaction_id: str, message: Message, on_done: Report) -> tuple[Message, Report]:
        """Start the span `prepare`. Returns the message for Kafka, and a report that ends the span and calls `on_done`.

        A message without a trace context gets that of the span, so that the worker and consumers can continue the
        trace. A message with one is not changed.
        """
        tracer = tracing.tracer()
        watched = None if tracer is None else self._start_prepare(tracer, transaction_id, message, on_done)
        return watched or (message, on_done)

    @_costs_spans
    def _start_prepare(
        self, tracer: Tracer, transaction_id: str, message: Message, on_done: Report
    ) -> tuple[Message, Report]:
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        parent = tracing.context_of(message.messages[0].headers)
        transaction = short_id(transaction_id)
        span = tracing.start_span(tracer, "prepare", message.topic, parent, group=self._group, transaction=transaction)
        context = trace.set_span_in_context(span, parent)
        carried = message
        if span.get_span_context().is_valid:
            carried = with_headers(message, tracing.headers_of_context(context), unless=tracing.TRACEPARENT)
        self._prepared[transaction_id] = (context, message.topic)

        def end_span(result: Prepared | PrepareError) -> None:
            _end_prepare(span, result)
            on_done(result)

        return carried, end_span

    def watch_end(self, partition: int, source: Source, end: Ticket, checked: MessageExt | None) -> None:
        """Start the span `decide` of a decision whose END is on the way; that of a check names the checked message."""
        tracer = tracing.tracer()
        if tracer is None:
            return
        if checked is not None:
            self._start_decide(tracer, tracing.context_of(checked.headers), checked.topic, partition, source, end)
        elif (known := self._prepared.get(end.entry.transaction_id)) is not None:
            self._start_decide(tracer, *known, partition, source, end)

    def forget_attempt(self, transaction_id: str) -> None:
        """Forget a transaction that is decided or given up."""
        self._prepared.pop(transaction_id, None)

    @_costs_spans
    def _start_decide(
        self, tracer: Tracer, context: Context | None, topic: str, partition: int, source: Source, end: Ticket
    ) -> None:
        entry = end.entry
        span = tracing.start_span(
            *(tracer, "decide", topic, context),
            group=self._group,
            transaction=short_id(entry.transaction_id),
            decision=entry.decision.name.lower(),
            source=source.value,
            half=f"{partition}:{entry.half_offset}",
            check_times=entry.check_times,
        )

        @_costs_spans
        def over(future: Future[None]) -> None:
            if (error := future.exception()) is not None:
                _failed(span, error)
            span.end()

        end.as_future().add_done_callback(over)


@_costs_spans
def _end_prepare(span: Span, result: Prepared | PrepareError) -> None:
    if isinstance(result, Prepared):
        span.set_attribute("txbridge.half", f"{result.partition}:{result.offset}")
    else:
        _failed(span, result)
    span.end()


def _failed(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    span.set_attribute("error.type", type(error).__name__)
    span.set_status(StatusCode.ERROR, masked(str(error)))
