"""Sender of records from an event loop: a producer, and a thread that serves its delivery reports."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from txbridge.client.base.contained import contained
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.client.kafka.producer import DeliveryReport, Wire
from txbridge.core.names import Headers
from txbridge.errors import UsageError
from txbridge.kafka.errors import FAIL, MSG_TIMED_OUT, PURGE_QUEUE, QUEUE_FULL

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

#: The error or None, the partition and the offset (-1: not known).
Report = tuple[KafkaError | None, int, int]
#: What `Wire.produce` takes: topic, value, key, headers, delivery report, partition and timestamp.
Sent = tuple[str, bytes | None, bytes | None, Headers, DeliveryReport, int, int]


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
        self._quick = Wire({**config, "linger.ms": 0}, connection)
        self._shared = Wire(config, connection) if linger else self._quick
        self._wires = (self._quick, self._shared) if linger else (self._quick,)
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
        self._threads = [threading.Thread(target=self._run, args=(one,), name=name, daemon=True) for one in self._wires]

    def start(self, loop: asyncio.AbstractEventLoop, topic: str) -> None:
        """Connect, which may take half a second for each producer, and start the threads."""
        self._loop = loop
        for wire, thread in zip(self._wires, self._threads, strict=True):
            wire.connect(topic)
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
        for wire in self._wires:
            wire.close()
        # Only now: a decision that waited for one of these is sent next, and must find the producer closed. In a purged
        # producer it would hold the end up until its time-out.
        self._hand_over()

    def _run(self, wire: Wire) -> None:
        serve_reports = contained(wire.serve_reports)
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
