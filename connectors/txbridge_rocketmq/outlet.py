"""Senders of records and of decisions from an event loop: a producer, and a thread that serves its delivery reports."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from txbridge.client.base.contained import contained
from txbridge.client.base.log import report
from txbridge.client.decide.decision_batcher import DecisionQueue, Lane, Ticket
from txbridge.client.kafka.connection import DeliveryReport, KafkaConnection, LastingProducer
from txbridge.client.options import DEFAULT_COMMIT_INTERVAL_S
from txbridge.core.decision_record import DecisionEntry, Source, encode_end
from txbridge.core.names import Headers, short_id
from txbridge.errors import UsageError
from txbridge.kafka.errors import FAIL, MSG_TIMED_OUT, PURGE_QUEUE, QUEUE_FULL, explain

#: Every delivery report wakes the thread. This bounds how late it notices that it has to end (s).
_SERVE_S = 0.1

#: While so many records of a partition are in flight, an idempotent librdkafka sends no more of them. But its thread
#: polls without a pause once one that waits behind them has waited for its linger. So those are held back here.
_MOST_IN_FLIGHT = 5
#: Records of a partition that leave at once, each in a request of its own. More share requests, because each request
#: costs the broker as much as several records.
_FEW = _MOST_IN_FLIGHT - 1
#: Part of the linger in which more records join a batch. At its end librdkafka sends the batch.
_OPEN = 0.6
#: Longest time (s) for which a record is held back. Its time-out begins when librdkafka has it.
_LONGEST_HOLD_S = 0.1
#: Pause (s) while librdkafka's queue is full. Its records leave within milliseconds, unless Kafka cannot be reached.
_FULL_RETRY_S = 0.05

#: The error or None, the partition and the offset (-1: not known).
Report = tuple[KafkaError | None, int, int]
#: What `LastingProducer.produce` takes: topic, value, key, headers, delivery report, partition and timestamp.
Sent = tuple[str, bytes | None, bytes | None, Headers, DeliveryReport, int, int]
#: The reason why Kafka has not acknowledged the decision, or None if it has.
Answer = asyncio.Future[str | None]


@dataclass(slots=True)
class _PartitionLane:
    """The records of a partition. Those of others, which may have another leader, do not wait for them."""

    in_flight: int = 0
    #: Those sent since none was in flight. One producer sends all of them, so that they keep their order.
    sent: int = 0
    #: How many went together lately, and whether they share requests therefore.
    company: int = 0
    is_shared: bool = False
    #: Until then (loop time) records join the batch that librdkafka collects.
    open_until: float = 0.0
    #: Records that are held back, in their order: with the answer.
    held: list[tuple[asyncio.Future[Report], Sent]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class Outlet:
    """Producer, for the event loop only. With a linger there are two, because librdkafka rounds it up to a millisecond.

    A record that is alone does not wait for others. `start` and `close` block, on any thread.
    """

    def __init__(self, config: Mapping[str, Any], connection: KafkaConnection, what: str) -> None:
        linger = float(config.get("linger.ms", 0))
        self._quick = LastingProducer({**config, "linger.ms": 0}, connection)
        self._shared = LastingProducer(config, connection) if linger else self._quick
        self._producers = (self._quick, self._shared) if linger else (self._quick,)
        self._connection = connection
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._open_s = _OPEN * linger / 1_000
        self._lanes: defaultdict[tuple[str, int], _PartitionLane] = defaultdict(_PartitionLane)
        self._reports: deque[tuple[_PartitionLane, asyncio.Future[Report], Report]] = deque()
        #: Acknowledgements that wait until the cluster is recognised.
        self._unsure = self._reports.copy()
        name = f"txbridge-{what.replace(' ', '-')}"
        self._threads = [
            threading.Thread(target=self._serve_producer, args=(one,), name=name, daemon=True)
            for one in self._producers
        ]

    def start(self, loop: asyncio.AbstractEventLoop, topic: str) -> None:
        """Connect, which may take half a second for each producer, and start the threads."""
        self._loop = loop
        for producer, thread in zip(self._producers, self._threads, strict=True):
            producer.connect(topic)
            thread.start()

    def send_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        *,
        partition: int = -1,
        timestamp: int | None = None,
    ) -> asyncio.Future[Report]:
        """Send a record. The answer comes at once, with QUEUE_FULL, if too many are waiting for Kafka."""
        assert self._loop is not None
        answer: asyncio.Future[Report] = self._loop.create_future()
        lane = self._lanes[topic, partition]
        on_delivery = partial(self._note_report, lane, answer)
        record = topic, value, key, headers, on_delivery, partition, timestamp or 0
        if not lane.in_flight:
            self._begin_lane(lane, 1)
        if not lane.held and self._may_leave(lane):
            self._produce_record(lane, answer, record)
        else:
            if not lane.held:
                lane.timer = self._loop.call_later(_LONGEST_HOLD_S, self._release_overdue, lane)
            lane.held.append((answer, record))
        return answer

    def _begin_lane(self, lane: _PartitionLane, waiting: int) -> None:
        """Choose the producer for the records that wait, while none is in flight."""
        lane.company = max(waiting, lane.sent, lane.company // 2)
        lane.is_shared = self._shared is self._quick or lane.company > _FEW
        lane.sent = 0

    def _may_leave(self, lane: _PartitionLane) -> bool:
        """Whether another record may be sent now: by itself, in the request of the one before, or in another one."""
        if not lane.is_shared:
            return lane.in_flight < _FEW
        assert self._loop is not None
        now = self._loop.time()
        if now >= lane.open_until:
            if lane.in_flight >= _MOST_IN_FLIGHT:
                return False
            lane.open_until = now + self._open_s
        return True

    def _produce_record(self, lane: _PartitionLane, answer: asyncio.Future[Report], record: Sent) -> None:
        try:
            (self._shared if lane.is_shared else self._quick).produce(*record)
        except BufferError:
            failure = KafkaError(QUEUE_FULL)
        except KafkaException as raised:
            failure = raised.args[0]
        except UsageError:
            # Closed, at the end of the door. Decisions that waited for the one before come here.
            failure = KafkaError(PURGE_QUEUE)
        else:
            lane.in_flight += 1
            lane.sent += 1
            return
        # Cancelled if the door has given the request up.
        if not answer.done():
            answer.set_result((failure, -1, -1))

    def _release_overdue(self, lane: _PartitionLane) -> None:
        # During the close they wait for its end, because a purged producer would keep them.
        if not self._stopping:
            self._release_held(lane)

    def _release_held(self, lane: _PartitionLane) -> None:
        assert self._loop is not None
        assert lane.timer is not None
        lane.timer.cancel()
        held, lane.held = lane.held, []
        lane.open_until = self._loop.time() + self._open_s
        for answer, record in held:
            self._produce_record(lane, answer, record)

    def close(self) -> None:
        """End threads and producers. Records without an acknowledgement fail. May take a second."""
        self._stopping = True
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for producer in self._producers:
            producer.close()
        # Only now: a decision that waited for one of these is sent next, and must find the producer closed. In a purged
        # producer it would hold the end up until its time-out.
        self._hand_over()

    def _serve_producer(self, producer: LastingProducer) -> None:
        serve_reports = contained(producer.serve_reports)
        while not self._stopping:
            serve_reports(_SERVE_S)
            self._hand_over()

    def _hand_over(self) -> None:
        if (self._reports or self._sure_by_now) and self._loop is not None and not self._loop.is_closed():
            # One call for all reports that came together, because each call wakes the event loop.
            self._loop.call_soon_threadsafe(self._set_answers)

    @property
    def _sure_by_now(self) -> bool:
        """Whether acknowledgements have waited long enough."""
        return bool(self._unsure) and (self._stopping or not self._connection.is_unsure)

    def _set_answers(self) -> None:
        while self._sure_by_now:
            self._reports.append(self._unsure.popleft())
        while self._reports:
            lane, answer, outcome = self._reports.popleft()
            if self._connection.refusal:
                outcome = KafkaError(FAIL, self._connection.refusal), -1, -1
            if not answer.done():
                answer.set_result(outcome)
            lane.in_flight -= 1
            if lane.held and lane.in_flight < (_MOST_IN_FLIGHT if lane.is_shared else 1):
                if not lane.in_flight:
                    self._begin_lane(lane, len(lane.held))
                self._release_held(lane)

    def _note_report(
        self, lane: _PartitionLane, answer: asyncio.Future[Report], error: KafkaError | None, record: Message
    ) -> None:
        if error is None:
            self._connection.note_answer()
        elif error.code() == MSG_TIMED_OUT:
            self._connection.note_time_out(self._what, record.latency() or 0.0)
        partition, offset = record.partition(), record.offset()
        known = error is None and partition is not None and offset is not None
        # Where all brokers were away, this one may be of another cluster.
        reports = self._unsure if known and self._connection.is_unsure else self._reports
        reports.append((lane, answer, (error, partition if known else -1, offset if known else -1)))  # type: ignore[arg-type]


class DecisionOutlet:
    """Decisions on their way to END, for the event loop only. They leave as those of txbridge's own client do.

    Those of one half partition, group and source share records and keep their order.
    """

    def __init__(self, outlet: Outlet, topic: str, client_id: str) -> None:
        self._outlet = outlet
        self._topic = topic
        self._client_id = client_id
        self._queue = DecisionQueue(DEFAULT_COMMIT_INTERVAL_S)
        self._answers: dict[Ticket, Answer] = {}
        #: Sends the records that are due.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unsettled(self) -> int:
        """Number of decisions that are neither acknowledged nor given up."""
        return self._queue.unsettled

    def submit_decision(
        self, group: str, partition: int, source: Source, entry: DecisionEntry, *, is_awaited: bool
    ) -> Answer:
        """Send a decision, at once if a client waits for the answer."""
        ticket = self._queue.add_command(partition, source, entry, 0, group=group, is_hurried=is_awaited)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        if self._queue.has_news:
            self._plan_records()
        return answer

    def _plan_records(self) -> None:
        # In the next turn of the event loop at the earliest, so that decisions that came in together share a record.
        due = self._queue.next_due
        if due is not None and (self._timer is None or due < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due, self._send_records)

    def _send_records(self) -> None:
        self._timer = None
        for lane in self._queue.start_records(asyncio.get_running_loop().time()):
            self._send_record(lane)
        self._plan_records()

    def _send_record(self, lane: Lane) -> None:
        entries = [ticket.entry for ticket in lane.in_flight]
        value, headers = encode_end(entries, lane.group, lane.source, self._client_id)
        stored = self._outlet.send_record(self._topic, value, None, headers, partition=lane.partition)
        stored.add_done_callback(partial(self._settle_record, lane))

    def _settle_record(self, lane: Lane, stored: asyncio.Future[Report]) -> None:
        error, _, _ = stored.result()
        if error is not None and error.code() == QUEUE_FULL:
            asyncio.get_running_loop().call_later(_FULL_RETRY_S, self._send_record, lane)
            return
        tickets = self._queue.finish_record(lane)
        if lane.waiting and (self._timer is None or lane.is_urgent):
            self._plan_records()
        if error is not None:
            report(
                logging.ERROR,
                "end_not_acknowledged",
                transactions=len(tickets),
                first=short_id(tickets[0].entry.transaction_id),
                partition=lane.partition,
                error=error.name(),
                next="the worker will ask check_local_transaction",
            )
        reason = None if error is None else explain(error)
        for answer in map(self._answers.pop, tickets):
            # Cancelled if the door has given the request up.
            if not answer.done():
                answer.set_result(reason)
