"""A started client, whatever its face is: begin, prepare, end, answer checks, flush, close."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from txbridge.client.checks.consumer import CheckConsumer, Group
from txbridge.client.checks.request import CheckRequest
from txbridge.client.decide.end_batcher import Ticket
from txbridge.client.decide.end_sender import EndSender
from txbridge.client.errors import PrepareError
from txbridge.client.flow import process
from txbridge.client.flow.registry import Attempts, TransactionIds
from txbridge.client.kafka.connection import Connection
from txbridge.client.kafka.producer import Wire
from txbridge.client.kafka.shortage import Shortage
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.listener import LocalTransactionState, Outcome
from txbridge.client.log import report
from txbridge.client.message import Limits, Message, check_limits
from txbridge.client.metrics import NoMetrics
from txbridge.client.options import ClientOptions
from txbridge.client.prepare.half_writer import AfterReports, HalfWriter, Prepared, Report
from txbridge.client.prepare.half_writer_pool import Company, HalfWriters
from txbridge.client.tracing import ClientTracing
from txbridge.core.end_record import EndEntry, Source
from txbridge.core.names import short_id
from txbridge.deadline import Deadline
from txbridge.kafka import config as kafka_config
from txbridge.topics.verify import Layout

#: Asks the application; the second argument takes the answer, from any thread, or None when it can not be asked.
Ask = Callable[[CheckRequest, Callable[[Outcome | None], None]], None]

#: The consumer of checks leaves its group in milliseconds, unless Kafka is away: then the group notices by itself
#: after the session time-out, and nobody should wait for that.
_LEAVE_GROUP_S = 3.0
#: With so many transactions under way, half messages wait a moment for company. Fewer would only wait: eight blocking
#: threads do 3,800 transactions a second with a linger of 1 ms, 5,200 without; 32 threads 9,600 with 0.5 ms, 7,200
#: without.
_COMPANY_FROM = 16
#: So long after message.timeout.ms a half message is given up of which librdkafka has said nothing: it looks once a
#: second what is too old, and what it says itself is the better answer.
REPORT_MARGIN_S = 1.0


class Runtime:
    """The threads and connections of a client; thread-safe."""

    def __init__(self, options: ClientOptions, layout: Layout, connection: Connection, ask: Ask) -> None:
        names, group, settings = options.names, options.group, options.settings

        def half_config(linger_ms: float) -> dict[str, Any]:
            room = layout.half_max_message_bytes
            return kafka_config.half_producer_config(settings, max_message_bytes=room, linger_ms=linger_ms)

        end_config = kafka_config.end_producer_config(settings)
        check_config = kafka_config.check_consumer_config(settings, group=names.check(group))
        retention = layout.half_retention_ms
        self._limits = Limits(layout.max_message_size, 2**31 - 1 if retention < 0 else retention // 1000)
        #: Seconds until a half message that is not acknowledged is given up. 0 is librdkafka's word for never.
        self.prepare_timeout = int(half_config(0)["message.timeout.ms"]) / 1000 or threading.TIMEOUT_MAX
        self._ask = ask
        self._metrics = NoMetrics() if options.metrics is None else options.metrics.of_group(group)
        self._tracing = ClientTracing(group)
        self._process = process.generation()
        self._ids = TransactionIds()
        self._attempts = Attempts()
        self._shortage = Shortage(settings, names.half)
        self._watch = TopicWatch(names, layout.partitions)
        # Half of the time is over by then.
        miss_before_s = self.prepare_timeout / 2 + REPORT_MARGIN_S
        self._halves = HalfWriters(
            lambda linger_ms, thread: HalfWriter(
                Wire(half_config(linger_ms), connection),
                connection,
                names,
                group,
                thread,
                self._shortage,
                miss_before_s,
                self._watch,
            )
        )
        # For people who read END: which process it was. RocketMQ's client id is made alike.
        client_id = f"{socket.gethostname()}@{os.getpid()}"
        self._ends = EndSender(Wire(end_config, connection), connection, names, group, client_id)
        self._checks = CheckConsumer(
            check_config,
            connection,
            Group(group, names, layout.partitions),
            self._answer,
            options.check_request_hold_max,
            self._watch,
        )

    def start(self) -> None:
        """Start the threads; only now: a setting that librdkafka refuses leaves none behind."""
        # This one connects in its thread, while the other waits for its own connection.
        self._ends.start()
        self._halves.start()
        self._checks.start()

    @property
    def is_of_this_process(self) -> bool:
        """False after a fork: librdkafka's threads do not exist in the child."""
        return self._process == process.generation()

    def new_transaction_id(self) -> str:
        """See TransactionIds.new."""
        return self._ids.new()

    def check_limits(self, message: Message) -> None:
        """UsageError if these topics can not take the message."""
        check_limits(message, self._limits)

    def begin(self, transaction_id: str, running: threading.Lock | None = None) -> None:
        """See Attempts.begin."""
        self._attempts.begin(transaction_id, running)

    def give_up(self, transaction_id: str) -> None:
        """The attempt is not prepared; if a check comes for it, it is answered with rollback."""
        self._attempts.give_up(transaction_id)

    def finish(self, transaction_id: str) -> None:
        """The attempt is ended or given up."""
        self._attempts.finish(transaction_id)
        self._metrics.finished(transaction_id)
        self._tracing.finished(transaction_id)

    def wait_for_room(self, timeout: float) -> bool:
        """Whether decisions are going out fast enough for another transaction; waits for it (s)."""
        return self._ends.wait_for_room(timeout)

    def half_writer(self, *, gathers: bool = False, in_order: bool = False) -> HalfWriter:
        """For the next half message: one that nobody waits for by itself `gathers` with others.

        `in_order` is always the same one: it may have to be connected first (Wire.connect).
        """
        if gathers:
            return self._halves.of(Company.MANY, waits=in_order)
        is_alone = self._attempts.running < _COMPANY_FROM
        return self._halves.of(Company.NOBODY if is_alone else Company.CALLERS, waits=False)

    def write_half(
        self,
        writer: HalfWriter,
        message: Message,
        transaction_id: str,
        on_done: Report,
        deadline: Deadline,
        after_reports: AfterReports | None = None,
    ) -> None:
        """See HalfWriter.write; `deadline` is when its caller's patience ends.

        PrepareError if HALF is not what it was at the start.
        """
        if self._watch.refusal:
            raise PrepareError(self._watch.refusal)
        self._watch.note(message.topic)
        measured = self._metrics.preparing(transaction_id, on_done)
        carried, traced = self._tracing.preparing(transaction_id, message, measured)
        writer.write(carried, transaction_id, traced, after_reports, deadline.at + REPORT_MARGIN_S)

    def end(self, prepared: Prepared, outcome: Outcome) -> Ticket:
        """Send the decision of a local transaction on its way."""
        entry = EndEntry(prepared.offset, prepared.transaction_id, outcome.decision, remark=outcome.remark)
        end = self._ends.submit(prepared.partition, entry, Source.CLIENT, prepared.size)
        self._metrics.ending(prepared.transaction_id, outcome, end)
        self._tracing.ending(prepared.transaction_id, prepared, outcome, end)
        return end

    def flush(self, timeout: float | None) -> int:
        """See EndSender.flush."""
        return self._ends.flush(timeout)

    def is_called_by_it(self) -> bool:
        """Whether this code runs in a thread of ours, in a callback of the application's: it can not wait for it."""
        return self._ends.is_this_thread() or self._checks.is_this_thread() or self._halves.is_served_here()

    def close(self, timeout: float | None, finish_checks: Callable[[float | None], None]) -> None:
        """Let everything that was begun come to its end, for at most `timeout` seconds, and stop.

        `finish_checks` waits (s) for the application's check methods that run. May be called again when it was
        interrupted.
        """
        deadline = Deadline(timeout)
        self._checks.stop()
        running = self._attempts.close(deadline.timeout)
        finish_checks(deadline.timeout)
        ends = self._ends.close(deadline.timeout)
        self._checks.close(_LEAVE_GROUP_S)
        self._halves.close()
        self._shortage.close()
        if running or ends:
            report(
                logging.WARNING,
                "closed_too_early",
                local_transactions_running=running,
                ends_not_acknowledged=ends,
                next="the worker will ask check_local_transaction",
            )

    def _answer(self, request: CheckRequest, settled: Callable[[], None]) -> None:
        """Answer a check; without the application where this process knows better."""
        message = request.message

        def answer(outcome: Outcome | None) -> None:
            if outcome is None:
                settled()
                return
            report(
                logging.DEBUG,
                "check_answered",
                transaction=short_id(message.transaction_id),
                topic=message.topic,
                check_times=message.check_times,
                state=outcome.state.name,
            )
            entry = EndEntry(
                message.half_offset,
                message.transaction_id,
                outcome.decision,
                message.check_times,
                outcome.remark,
            )
            end = self._ends.submit(message.half_partition, entry, Source.CHECK, request.size)
            self._metrics.answering(outcome, end)
            self._tracing.answering(request, outcome, end)
            end.future().add_done_callback(lambda _: settled())

        verdict = self._attempts.verdict(message.transaction_id)
        if verdict is None:
            self._ask(request, answer)
        else:
            answer(Outcome(LocalTransactionState(verdict)))
