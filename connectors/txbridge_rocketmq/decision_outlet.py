"""Sender of decisions to END. Those of one half partition, group and source share records and keep their order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from txbridge.client.base.log import report
from txbridge.client.decide.decision_batcher import MAX_RECORD_BYTES, most_bytes
from txbridge.client.decide.decision_sender import MAX_UNSETTLED
from txbridge.client.errors import explain
from txbridge.core.decision_record import MAX_ENTRIES, DecisionEntry, Source, encode_end
from txbridge.core.names import short_id
from txbridge.kafka.errors import QUEUE_FULL
from txbridge_rocketmq.outlet import Outlet, Report

#: Pause (s) while librdkafka's queue is full. Its records leave within milliseconds, unless Kafka cannot be reached.
_FULL_RETRY_S = 0.05

#: The reason why Kafka has not acknowledged the decision, or None if it has.
Answer = asyncio.Future[str | None]
_Batch = list[tuple[DecisionEntry, Answer]]


@dataclass(slots=True)
class _DecisionLane:
    waiting: deque[tuple[DecisionEntry, Answer]] = field(default_factory=deque)
    in_flight: bool = False


class DecisionOutlet:
    """Decisions on their way, for the event loop only. Each lane has one record in flight and collects the next."""

    def __init__(self, outlet: Outlet, topic: str, client_id: str) -> None:
        self._outlet = outlet
        self._topic = topic
        self._client_id = client_id
        self._lanes: dict[tuple[str, int, Source], _DecisionLane] = {}
        #: Decisions that are neither acknowledged nor given up.
        self.unsettled = 0

    @property
    def has_room(self) -> bool:
        """Whether few enough decisions wait to accept another transaction."""
        return self.unsettled < MAX_UNSETTLED

    def submit_decision(self, group: str, partition: int, source: Source, entry: DecisionEntry) -> Answer:
        """Send a decision."""
        where = (group, partition, source)
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = _DecisionLane()
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        lane.waiting.append((entry, answer))
        self.unsettled += 1
        if not lane.in_flight:
            lane.in_flight = True
            # In the next turn of the event loop, so that decisions that came in together share a record.
            loop.call_soon(self._send_record, where)
        return answer

    def _send_record(self, where: tuple[str, int, Source]) -> None:
        group, partition, source = where
        lane = self._lanes[where]
        batch = _first_of(lane.waiting)
        value, headers = encode_end([entry for entry, _ in batch], group, source, self._client_id)
        stored = self._outlet.send_record(self._topic, value, None, headers, partition=partition)
        stored.add_done_callback(partial(self._settle_batch, where, batch))

    def _settle_batch(self, where: tuple[str, int, Source], batch: _Batch, stored: asyncio.Future[Report]) -> None:
        lane, (error, _, _) = self._lanes[where], stored.result()
        if error is not None and error.code() == QUEUE_FULL:
            lane.waiting.extendleft(reversed(batch))
            asyncio.get_running_loop().call_later(_FULL_RETRY_S, self._send_record, where)
            return
        self.unsettled -= len(batch)
        if lane.waiting:
            self._send_record(where)
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
