"""Sender of decisions to END. Those of one half partition, group and source share records and keep their order."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from txbridge.client.base.log import report
from txbridge.client.decide.decision_batcher import DecisionQueue, Lane, Ticket
from txbridge.client.decide.decision_sender import MAX_UNSETTLED
from txbridge.client.errors import explain
from txbridge.client.options import DEFAULT_COMMIT_INTERVAL_S
from txbridge.core.decision_record import DecisionEntry, Source, encode_end
from txbridge.core.names import short_id
from txbridge.kafka.errors import QUEUE_FULL
from txbridge_rocketmq.outlet import Outlet, Report

#: Pause (s) while librdkafka's queue is full. Its records leave within milliseconds, unless Kafka cannot be reached.
_FULL_RETRY_S = 0.05

#: The reason why Kafka has not acknowledged the decision, or None if it has.
Answer = asyncio.Future[str | None]


class DecisionOutlet:
    """Decisions on their way, for the event loop only. They leave as those of txbridge's own client do."""

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

    @property
    def has_room(self) -> bool:
        """Whether few enough decisions wait to accept another transaction."""
        return self.unsettled < MAX_UNSETTLED

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
