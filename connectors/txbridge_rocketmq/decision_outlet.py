"""Sender of decisions to END. Those of one half partition, group and source share records and keep their order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from txbridge.client.base.log import report
from txbridge.client.decide.decision_batcher import ENOUGH, MAX_RECORD_BYTES, most_bytes
from txbridge.client.decide.decision_sender import MAX_UNSETTLED
from txbridge.client.errors import explain
from txbridge.client.options import DEFAULT_COMMIT_INTERVAL_S
from txbridge.core.decision_record import MAX_ENTRIES, DecisionEntry, Source, encode_end
from txbridge.core.names import short_id
from txbridge.kafka.errors import QUEUE_FULL
from txbridge_rocketmq.outlet import Outlet, Report

#: Pause (s) while librdkafka's queue is full. Its records leave within milliseconds, unless Kafka cannot be reached.
_FULL_RETRY_S = 0.05

#: The reason why Kafka has not acknowledged the decision, or None if it has.
Answer = asyncio.Future[str | None]
#: Group, half partition and source.
_Where = tuple[str, int, Source]
_Batch = list[tuple[DecisionEntry, Answer]]


@dataclass(slots=True)
class _DecisionLane:
    waiting: deque[tuple[DecisionEntry, Answer]] = field(default_factory=deque)
    in_flight: bool = False
    #: Whether a client waits for a decision of the next record.
    is_urgent: bool = False


class DecisionOutlet:
    """Decisions on their way, for the event loop only. Each lane has one record in flight and collects the next.

    As in txbridge's own client the records of all lanes leave together, 25 ms apart at least, unless one is urgent. A
    record costs door, Kafka and worker the same, however many decisions are in it.
    """

    def __init__(self, outlet: Outlet, topic: str, client_id: str) -> None:
        self._outlet = outlet
        self._topic = topic
        self._client_id = client_id
        self._lanes: dict[_Where, _DecisionLane] = {}
        #: Lanes with decisions and nothing in flight. `_timer` sends their records.
        self._ready: dict[_Where, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Earliest time of the next records that are not urgent.
        self._next_tick = 0.0
        #: Decisions that are neither acknowledged nor given up.
        self.unsettled = 0

    @property
    def has_room(self) -> bool:
        """Whether few enough decisions wait to accept another transaction."""
        return self.unsettled < MAX_UNSETTLED

    def submit_decision(
        self, group: str, partition: int, source: Source, entry: DecisionEntry, *, is_awaited: bool
    ) -> Answer:
        """Send a decision, at once if a client waits for the answer."""
        where = (group, partition, source)
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = _DecisionLane()
        answer: Answer = asyncio.get_running_loop().create_future()
        lane.waiting.append((entry, answer))
        self.unsettled += 1
        lane.is_urgent = lane.is_urgent or is_awaited
        if not lane.in_flight:
            self._plan_record(where, lane)
        return answer

    def _plan_record(self, where: _Where, lane: _DecisionLane) -> None:
        """Let the lane's next record leave with those of the others."""
        self._ready[where] = None
        # In the next turn of the event loop at the earliest, so that decisions that came in together share a record.
        due = 0.0 if lane.is_urgent or len(lane.waiting) >= ENOUGH else self._next_tick
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due, self._send_ready)

    def _send_ready(self) -> None:
        self._timer = None
        self._next_tick = asyncio.get_running_loop().time() + DEFAULT_COMMIT_INTERVAL_S
        ready, self._ready = self._ready, {}
        for where in ready:
            self._send_record(where)

    def _send_record(self, where: _Where) -> None:
        group, partition, source = where
        lane = self._lanes[where]
        lane.in_flight, lane.is_urgent = True, False
        batch = _first_of(lane.waiting)
        value, headers = encode_end([entry for entry, _ in batch], group, source, self._client_id)
        stored = self._outlet.send_record(self._topic, value, None, headers, partition=partition)
        stored.add_done_callback(partial(self._settle_batch, where, batch))

    def _settle_batch(self, where: _Where, batch: _Batch, stored: asyncio.Future[Report]) -> None:
        lane, (error, _, _) = self._lanes[where], stored.result()
        if error is not None and error.code() == QUEUE_FULL:
            lane.waiting.extendleft(reversed(batch))
            asyncio.get_running_loop().call_later(_FULL_RETRY_S, self._send_record, where)
            return
        self.unsettled -= len(batch)
        lane.in_flight = False
        if lane.waiting:
            self._plan_record(where, lane)
        else:
            del self._lanes[where]
        if error is not None:
            report(
                logging.ERROR,
                "end_not_acknowledged",
                transactions=len(batch),
                first=short_id(batch[0][0].transaction_id),
                partition=where[1],
                error=error.name(),
                next="the worker will ask check_local_transaction",
            )
        reason = None if error is None else explain(error)
        for _, answer in batch:
            # Cancelled if the door has given the request up.
            if not answer.done():
                answer.set_result(reason)


def _first_of(waiting: deque[tuple[DecisionEntry, Answer]]) -> _Batch:
    taken: _Batch = []
    size = 0
    while waiting and len(taken) < MAX_ENTRIES:
        size += most_bytes(waiting[0][0])
        if taken and size > MAX_RECORD_BYTES:
            break
        taken.append(waiting.popleft())
    return taken
