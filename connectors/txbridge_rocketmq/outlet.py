"""Sender of records from an event loop: a producer, and a thread that serves its delivery reports."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Record

from txbridge.client.base.log import report
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.client.kafka.producer import Wire
from txbridge.core.names import Headers
from txbridge.errors import UsageError
from txbridge.kafka.errors import MSG_TIMED_OUT, PURGE_QUEUE

#: Every delivery report wakes the thread. This bounds how late it notices that it has to end (s).
_SERVE_S = 0.1

#: The error or None, the partition and the offset (-1: not known).
Report = tuple[KafkaError | None, int, int]


class Outlet:
    """Producer and its thread. `send` is for the event loop only. `start` and `close` block, and may run elsewhere."""

    def __init__(self, config: Mapping[str, Any], connection: KafkaConnection, what: str) -> None:
        self._wire = Wire(config, connection)
        self._connection = connection
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._reports: deque[tuple[asyncio.Future[Report], Report]] = deque()
        self._thread = threading.Thread(target=self._run, name=f"txbridge-{what.replace(' ', '-')}", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop, topic: str) -> None:
        """Connect, which may take half a second, and start the thread."""
        self._loop = loop
        self._wire.connect(topic)
        self._thread.start()

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
        """Hand a record to the producer. Raises BufferError if its queue is full."""
        assert self._loop is not None
        answer: asyncio.Future[Report] = self._loop.create_future()
        try:
            self._wire.produce(
                topic, value, key, headers, partial(self._note_report, answer), partition, timestamp=timestamp or 0
            )
        except KafkaException as failure:
            answer.set_result((failure.args[0], -1, -1))
        except UsageError:
            # Closed, at the end of the door. Decisions that waited for the one before come here.
            answer.set_result((KafkaError(PURGE_QUEUE), -1, -1))
        return answer

    def close(self) -> None:
        """End the thread and the producer. Records without an acknowledgement fail. May take a second."""
        self._stopping = True
        if self._thread.ident is not None:
            self._thread.join()
        self._wire.close()
        # Only now: a decision that waited for one of these is sent next, and must find the producer closed. In a purged
        # producer it would hold the end up until its time-out.
        self._hand_over()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._wire.serve_reports(_SERVE_S)
            except Exception as error:  # noqa: BLE001  a callback in the user's settings: the thread must live on
                report(logging.ERROR, "kafka_callback_raised", exception=error)
            self._hand_over()

    def _hand_over(self) -> None:
        if self._reports and self._loop is not None and not self._loop.is_closed():
            # One call for all reports that came together, because each call wakes the event loop.
            self._loop.call_soon_threadsafe(self._set_answers)

    def _set_answers(self) -> None:
        while self._reports:
            answer, outcome = self._reports.popleft()
            # Cancelled if the door has given the request up.
            if not answer.done():
                answer.set_result(outcome)

    def _note_report(self, answer: asyncio.Future[Report], error: KafkaError | None, record: Record) -> None:
        if error is None:
            self._connection.note_answer()
        elif error.code() == MSG_TIMED_OUT:
            self._connection.note_time_out(self._what, record.latency() or 0.0)
        partition, offset = record.partition(), record.offset()
        known = error is None and partition is not None and offset is not None
        self._reports.append((answer, (error, partition if known else -1, offset if known else -1)))  # type: ignore[arg-type]
