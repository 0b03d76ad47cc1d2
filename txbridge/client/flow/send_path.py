"""The send path: the steps of a transaction, which the blocking, the pipelined and the asyncio API share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txbridge.client.errors import PrepareError
from txbridge.client.flow import process
from txbridge.client.flow.registry import Attempts, TransactionIds
from txbridge.client.listener import Outcome, TransactionListener, execute, execution_failed
from txbridge.client.message import Limits, Message, MessageExt, check_limits
from txbridge.client.prepare.half_writer_pool import Company, HalfWriters
from txbridge.client.result import TransactionSendResult
from txbridge.core.end_record import EndEntry, Source
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.decide.end_batcher import Ticket
    from txbridge.client.decide.end_sender import EndSender
    from txbridge.client.kafka.topic_watch import TopicWatch
    from txbridge.client.metrics import GroupMetrics, NoMetrics
    from txbridge.client.prepare.half_writer import AfterReports, HalfWriter, Prepared, Report
    from txbridge.client.tracing import ClientTracing

#: A wait for room, and for how long (s). It returns sooner if there is room.
Wait = tuple[Callable[[float], object], float]

#: With so many transactions under way, half messages wait a moment for company. Fewer would only wait: eight blocking
#: threads do 3,800 transactions a second with a linger of 1 ms, 5,200 without; 32 threads 9,600 with 0.5 ms, 7,200
#: without.
_COMPANY_FROM = 16
#: So long after message.timeout.ms a half message is given up of which librdkafka has said nothing: it looks once a
#: second what is too old, and what it says itself is the better answer.
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
    """Thread-safe. A transaction passes these steps, in this order; each API waits between them in its own way.

    1. `admit` refuses what these topics cannot take, and names the transaction.
    2. `begin` notes that it runs, so that a check finds it running.
    3. `half_writer` chooses who writes the half message, and `hand_over` gives it to Kafka.
    4. `prepared` takes Kafka's word of it. Without an acknowledgement the transaction is given up here.
    5. The local transaction runs; `end` sends its decision, `interrupted` that there is none.
    6. `finish`, whatever has happened.
    """

    def __init__(
        self,
        limits: Limits,
        prepare_timeout: float,
        attempts: Attempts,
        halves: HalfWriters,
        ends: EndSender,
        watch: TopicWatch,
        metrics: GroupMetrics | NoMetrics,
        tracing: ClientTracing,
    ) -> None:
        self._limits = limits
        #: Seconds until a half message that is not acknowledged is given up.
        self._prepare_timeout = prepare_timeout
        self._attempts = attempts
        self._halves = halves
        self._ends = ends
        self._watch = watch
        self._metrics = metrics
        self._tracing = tracing
        self._ids = TransactionIds()
        self._process = process.generation()

    @property
    def is_of_this_process(self) -> bool:
        """False after a fork: librdkafka's threads do not exist in the child."""
        return self._process == process.generation()

    def require_this_process(self) -> None:
        """UsageError after a fork."""
        if not self.is_of_this_process:
            raise UsageError("this producer was started before a fork; create one in the child")

    # --- the steps --------------------------------------------------------------------------------------------------

    def admit(self, message: Message) -> str:
        """The id of a new transaction; UsageError if this client cannot send the message."""
        self.require_this_process()
        check_limits(message, self._limits)
        return self._ids.new()

    def begin(self, transaction_id: str, running: threading.Lock | None = None) -> None:
        """See Attempts.begin."""
        self._attempts.begin(transaction_id, running)

    def half_writer(self, *, gathers: bool = False, in_order: bool = False) -> HalfWriter:
        """For the next half message: one that nobody waits for by itself `gathers` with others.

        `in_order` is always the same one: it may have to be connected first (Wire.connect).
        """
        if gathers:
            return self._halves.of(Company.MANY, waits=in_order)
        is_alone = self._attempts.running < _COMPANY_FROM
        return self._halves.of(Company.NOBODY if is_alone else Company.CALLERS, waits=False)

    def hand_over(
        self,
        writer: HalfWriter,
        message: Message,
        transaction_id: str,
        on_done: Report,
        after_reports: AfterReports | None = None,
    ) -> Iterator[Wait]:
        """Give the half message to the writer; yields what has to be waited for before that.

        All waits together take as long as an acknowledgement may; then PrepareError, as when HALF is not what it was at
        the start.
        """
        deadline = Deadline(self._prepare_timeout)
        while not self._has_room_for_ends(0):
            if deadline.is_over:
                raise PrepareError(_NO_ROOM_FOR_ENDS)
            yield self._has_room_for_ends, deadline.left
        while True:
            try:
                self._write(writer, message, transaction_id, on_done, deadline, after_reports)
            except BufferError:
                if deadline.is_over:
                    raise PrepareError(_NO_ROOM_FOR_HALF_MESSAGES) from None
                yield writer.wait_for_room, deadline.left
            else:
                return

    def prepared(self, transaction_id: str, result: Prepared | PrepareError) -> Prepared:
        """What was reported; PrepareError if Kafka does not acknowledge the half message."""
        if isinstance(result, PrepareError):
            self.give_up(transaction_id)
            raise result
        return result

    def give_up(self, transaction_id: str) -> None:
        """There will be no local transaction; if a check comes for it, it is answered with rollback."""
        self._attempts.give_up(transaction_id)

    def end(self, prepared: Prepared, outcome: Outcome) -> Ticket:
        """Send the decision of a local transaction on its way."""
        entry = EndEntry(prepared.offset, prepared.transaction_id, outcome.decision, remark=outcome.remark)
        end = self._ends.submit(prepared.partition, entry, Source.CLIENT, prepared.size)
        self._metrics.ending(prepared.transaction_id, outcome, end)
        self._tracing.ending(prepared.transaction_id, prepared, outcome, end)
        return end

    def interrupted(self, prepared: Prepared, given: MessageExt, error: BaseException) -> None:
        """KeyboardInterrupt or the like is on its way out, but the worker learns that nothing is known."""
        self.end(prepared, execution_failed(given, error))

    def finish(self, transaction_id: str) -> None:
        """The attempt is ended or given up."""
        self._attempts.finish(transaction_id)
        self._metrics.finished(transaction_id)
        self._tracing.finished(transaction_id)

    # --- for threads ------------------------------------------------------------------------------------------------

    def write(
        self,
        writer: HalfWriter,
        message: Message,
        transaction_id: str,
        on_done: Report,
        after_reports: AfterReports | None = None,
    ) -> None:
        """`hand_over` in a thread that may wait."""
        for wait, seconds in self.hand_over(writer, message, transaction_id, on_done, after_reports):
            wait(seconds)

    def prepare(self, message: Message, transaction_id: str) -> Prepared:
        """Store the half message and wait for that; PrepareError if Kafka does not acknowledge it."""
        try:
            writer = self.half_writer()
            with writer.waiter() as waiter:
                self.write(writer, message, transaction_id, waiter.report)
                # Every record is reported, at the latest when its time is over.
                result = waiter.result()
        except BaseException:
            # Interrupted: Kafka may store it, but there will be no local transaction.
            self.give_up(transaction_id)
            raise
        return self.prepared(transaction_id, result)

    def decide(
        self, listener: TransactionListener, message: Message, prepared: Prepared, arg: Any
    ) -> TransactionSendResult:
        """Run the local transaction in this thread and send its decision on the way."""
        given = prepared.extended(message)
        try:
            outcome = execute(listener, given, arg)
        except BaseException as error:
            self.interrupted(prepared, given, error)
            raise
        return TransactionSendResult.of(prepared, outcome, self.end(prepared, outcome))

    # --- parts ------------------------------------------------------------------------------------------------------

    def _has_room_for_ends(self, timeout: float) -> bool:
        """Whether decisions are going out fast enough for another transaction; waits for it (s)."""
        return self._ends.wait_for_room(timeout)

    def _write(
        self,
        writer: HalfWriter,
        message: Message,
        transaction_id: str,
        on_done: Report,
        deadline: Deadline,
        after_reports: AfterReports | None,
    ) -> None:
        """See HalfWriter.write; `deadline` is when its caller's patience ends."""
        if self._watch.refusal:
            raise PrepareError(self._watch.refusal)
        for one in message.messages:
            self._watch.note(one.topic)
        measured = self._metrics.preparing(transaction_id, on_done)
        carried, traced = self._tracing.preparing(transaction_id, message, measured)
        writer.write(carried, transaction_id, traced, after_reports, deadline.at + REPORT_MARGIN_S)
