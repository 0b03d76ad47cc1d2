"""A client on a bridge in memory: what a started producer uses in place of its connections to Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import KafkaError

from txbridge.client.checks.calls import CheckCalls, CheckRequest, LoopChecks
from txbridge.client.decide.decision_batcher import Ticket, settled_ticket
from txbridge.client.errors import EndTransactionError, PrepareError
from txbridge.client.flow.cancellation import Cancellable, parse_cancellable
from txbridge.client.flow.send_path import SendPath
from txbridge.client.kafka.topic_watch import TopicWatch, require_time_taken
from txbridge.client.listener import ListenerOutcome
from txbridge.client.message import Message, MessageLimits, new_transaction_id, now_ms
from txbridge.client.message_batch import MessageBatch
from txbridge.client.options import ClientOptions
from txbridge.client.outbox_values import message_of_row
from txbridge.client.prepare.half_writer import Report, headers_of
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.result import CANCELLABLE, CancelResult
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end
from txbridge.core.half_message import Reply
from txbridge.core.names import Names
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.errors import MSG_TIMED_OUT
from txbridge.kafka.topic_lookup import TopicRules
from txbridge.testing.memory.broker import HALF_PARTITIONS, PARTITION, CrashPoint, MemoryBroker
from txbridge.topics.spec import DEFAULT_MESSAGE, HALF_RETENTION_MS

#: A time-out (s) that nothing here waits for.
_PREPARE_TIMEOUT_S = 3.0
#: The producer group of rows of an outbox.
_RELAY = "relay"
_AWAY = "Kafka is away (MemoryBridge.stop)"
_CHECKED = "nothing is lost: the worker will ask check_local_transaction"


class ClientCrashError(Exception):
    """The end of the process (`MemoryBridge.crash_at`). Handlers of the service run, as they would not in a dead one.

    A BaseException would end the event loop of a test client, too.
    """


class _DefaultTopics:
    """What the send path asks of real topics: each has Kafka's defaults."""

    _RULES = TopicRules(ahead_ms=3_600_000)

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def look_up(self, _message: Message, _timeout: float) -> Callable[[], None] | None:
        return None

    def require_taken(self, message: Message) -> None:
        """Raise UsageError for a timestamp too far ahead (message.timestamp.after.max.ms)."""
        for one in message.messages:
            require_time_taken(one, self._RULES, self._broker.now)


class MemoryClient:
    """A started client. It is its own connection, its own writer of half messages and its own sender of decisions.

    It does everything in the calling thread.
    """

    #: As a HalfWriter: called after a half message.
    after_reports: Callable[[], None] | None = None
    #: As a DecisionSender.
    has_room = True

    def __init__(
        self, broker: MemoryBroker, options: ClientOptions, checks: CheckCalls, leave: Callable[[MemoryClient], object]
    ) -> None:
        """`leave` is called at its end."""
        self.group = options.group
        #: As a Cancellation.
        self.cancellation = self
        self._checks = checks
        #: Whether its process has died.
        self.has_crashed = False
        self._broker = broker
        self._leave = leave
        limits = MessageLimits(DEFAULT_MESSAGE, HALF_RETENTION_MS // 1000, int(options.timer_max_delay * 1000))
        self.sends = SendPath(
            options,
            limits,
            _PREPARE_TIMEOUT_S,
            cast(Any, self),
            cast(Any, self),
            TopicWatch(Names(), HALF_PARTITIONS),
            cast(Any, _DefaultTopics(broker)),
            lambda: self.is_connected,
        )

    @property
    def is_connected(self) -> bool:
        return self._broker.is_running and not self.has_crashed

    def flush(self, _timeout: float | None) -> int:
        """Nothing waits: a decision is stored, or given up, within its call."""
        return 0

    def is_called_by_it(self) -> bool:
        """There is no thread for which a caller could wait."""
        return False

    def cancel(self, transaction: Cancellable, reason: str, _timeout: float | None) -> CancelResult:
        """Find the transaction, and give it up if it waits. The worker answers at once."""
        transaction_id, _ = parse_cancellable(transaction, reason)
        self._require_alive()
        if not self._broker.is_running:
            raise EnvironmentProblemError(f"nothing was cancelled: {_AWAY}")
        reply = self._ask_worker(DecisionEntry(0, transaction_id, Decision.UNKNOWN), Source.FIND)
        if reply.state in CANCELLABLE and reply.half_offset is not None:
            entry = DecisionEntry(reply.half_offset, transaction_id, Decision.UNKNOWN, None, reason)
            reply = self._ask_worker(entry, Source.CANCEL)
        return CancelResult.of_reply(reply)

    def _ask_worker(self, entry: DecisionEntry, source: Source) -> Reply:
        return self._broker.ask_worker(*encode_end([entry], self.group, source, reply="in-memory"))

    def close(self, timeout: float | None, finish_checks: Callable[[float | None], None]) -> None:
        """Wait up to `timeout` seconds (None: no limit) for running transactions, and leave the bridge."""
        deadline = Deadline(timeout)
        self.sends.attempts.close(deadline.timeout)
        finish_checks(deadline.timeout)
        self._leave(self)

    def for_caller(self, _running: int, _local: int) -> MemoryClient:
        return self

    def for_many(self, *, waits: bool) -> MemoryClient:  # noqa: ARG002
        return self

    def write_half(
        self, message: Message, transaction_id: str, on_done: Report, _deadline: float, barrier_id: str | None
    ) -> None:
        """Store a half message and report it, both before this returns. Raises ClientCrashError."""
        self._require_alive()
        broker = self._broker
        if broker.is_running:
            sent = _later(message, broker.now)
            headers = headers_of(sent, transaction_id, self.group, barrier_id)
            offset, born = broker.store_half(sent.key, sent.value, headers)
            self._crash_if_at(CrashPoint.PREPARED)
            on_done(Prepared(transaction_id, PARTITION, offset, born, sent.size))
        else:
            error = KafkaError(MSG_TIMED_OUT)
            on_done(PrepareError(f"the half message was not acknowledged by Kafka: {_AWAY}", error))
        if self.after_reports is not None:
            self.after_reports()

    def submit_command(self, _partition: int, entry: DecisionEntry, source: Source, _size: int) -> Ticket:
        """Store a decision, unless it is to be lost. What it makes visible is visible when this returns."""
        is_own = source is Source.CLIENT
        self._require_alive()
        if is_own:
            self._crash_if_at(CrashPoint.EXECUTED)
        lost, self._broker.is_to_lose = self._broker.is_to_lose, False
        if lost or not self._broker.is_running:
            why = "the test has lost it (MemoryBridge.lose_decision)" if lost else _AWAY
            error = EndTransactionError(f"the END was not acknowledged by Kafka: {why}. {_CHECKED}")
            return settled_ticket(entry, error)
        self._broker.store_decision(*encode_end([entry], self.group, source))
        if is_own:
            self._crash_if_at(CrashPoint.DECIDED)
        return settled_ticket(entry)

    def _require_alive(self) -> None:
        if self.has_crashed:
            raise ClientCrashError("the process of this producer has died (MemoryBridge.crash_at): make a new producer")

    def _crash_if_at(self, point: CrashPoint) -> None:
        if self._broker.crash_point is point:
            self._broker.crash_point, self.has_crashed = None, True
            raise ClientCrashError(f"the process of this producer dies here: {point.value} (MemoryBridge.crash_at)")

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which its listener is called. None: in the thread that asks."""
        return self._checks.loop if isinstance(self._checks, LoopChecks) else None

    def start_check(self, request: CheckRequest) -> Future[ListenerOutcome | None]:
        """Ask for the outcome of a transaction. Raises UsageError if the loop that has to answer does not run."""
        known = self.sends.known_outcome(request.message)
        if known is None and self.loop is not None:
            if not self.loop.is_running():
                raise UsageError(
                    f"the event loop of the producer of group {self.group} does not run: await bridge.aio on it"
                )
            return self._checks.start_call(request.message)
        answer: Future[ListenerOutcome | None] = Future()
        answer.set_result(known or self._checks.call_listener(request.message))
        return answer

    def answer_check(self, request: CheckRequest, outcome: ListenerOutcome | None) -> list[Exception]:
        """Send the answer to a check. Returns what the listener has raised."""
        if outcome is None:
            # The producer was closed meanwhile.
            return []
        self.sends.send_answer(request, outcome)
        return [] if outcome.exception is None or outcome.decision else [outcome.exception]


def deliver_row(broker: MemoryBroker, row: Mapping[str, Any]) -> None:
    """Deliver a row of an outbox as a relay does, after the ENDs that it names. A delay begins now."""

    def commit(group: str, transaction_id: str, offset: int) -> None:
        entry = DecisionEntry(offset, transaction_id, Decision.COMMIT)
        broker.store_decision(*encode_end([entry], group, Source.CLIENT))

    message, after = message_of_row(row)
    for group, earlier_id, _, offset in after:
        commit(group, earlier_id, offset)
    transaction_id, sent = new_transaction_id(), _later(message, broker.now)
    offset, _ = broker.store_half(sent.key, sent.value, headers_of(sent, transaction_id, _RELAY, None))
    commit(_RELAY, transaction_id, offset)


def _later(message: Message, now: int) -> Message:
    """The message with its times of delivery by the bridge's clock, which shows `now` (ms). A delay begins now."""
    if isinstance(message, MessageBatch):
        messages = tuple(_later(one, now) for one in message.messages)
        return MessageBatch(messages, message.check_immunity_time, message.headers)
    if message.deliver_at is None:
        return message
    due = message.deliver_at - now_ms() if message.delay_ms is None else message.delay_ms
    fields = (message.topic, message.value, message.key, message.headers, message.timestamp, message.partition)
    return Message(*fields, message.check_immunity_time, max(0, now + due))
