"""Sender of END commands. It gathers and sends them, and takes the acknowledgements, in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Record

from txbridge.client.base.contained import contained
from txbridge.client.base.log import report
from txbridge.client.base.process import join
from txbridge.client.decide.decision_batcher import DecisionQueue, Lane, Ticket, settle_all, settled_ticket
from txbridge.client.errors import EndTransactionError
from txbridge.client.kafka.connection import KafkaConnection, LastingProducer
from txbridge.core.decision_record import DecisionEntry, Source, encode_end
from txbridge.core.names import Names, short_id
from txbridge.kafka.errors import MSG_TIMED_OUT

#: Unsettled commands at which new transactions are held back: 36 MB, if each has a future. More than a few thousand
#: wait only while Kafka takes half messages but no ENDs.
MAX_UNSETTLED = 20_000
#: Longest wait (s) while a record is in flight. An acknowledgement wakes the thread at once, a new command does not. So
#: this bounds the wait of a command of another partition, while the broker of the record in flight does not answer.
_SERVE_S = 0.01
#: Longest wait (s) while nothing is in flight. A command wakes the thread, so this only bounds the delay of
#: librdkafka's errors.
_IDLE_S = 1.0
_NOT_LOST = "nothing is lost: the worker will ask check_local_transaction"
_CLOSED = f"the producer was closed before the END was sent; {_NOT_LOST}"


class DecisionSender:
    """Sends END commands; thread-safe."""

    def __init__(
        self,
        producer: LastingProducer,
        connection: KafkaConnection,
        names: Names,
        group: str,
        client_id: str,
        interval: float,
    ) -> None:
        """`interval` is the client's option commit_interval."""
        self._producer = producer
        self._connection = connection
        self._topic = names.end
        self._group = group
        self._client_id = client_id
        self._queue = DecisionQueue(interval, self._hurry_all)
        self._lock = threading.Lock()
        #: Wakes the thread, because there is something to do.
        self._work = threading.Condition(self._lock)
        #: Wakes callers in flush(), because something was settled.
        self._progress = threading.Condition(self._lock)
        self._in_flight = 0
        self._closing = False
        self._give_up = False
        #: Callbacks of a result's `end` run in it, too.
        self.thread = threading.Thread(target=self._run, name="txbridge-end", daemon=True)

    def start(self) -> None:
        self.thread.start()

    @property
    def unsettled(self) -> int:
        """Number of commands that Kafka has not acknowledged."""
        return self._queue.unsettled

    def submit_command(
        self, partition: int, entry: DecisionEntry, source: Source, size: int, reply: str | None = None
    ) -> Ticket:
        """Queue a command about a half message of `size` bytes. Never blocks. After close the ticket has failed.

        `reply` names the reply that the worker is asked for.
        """
        with self._lock:
            if not self._give_up:
                ticket = self._queue.add_command(partition, source, entry, size, reply)
                # Most commands join waiting ones that the thread knows of.
                if self._queue.has_news:
                    self._work.notify()
                return ticket
        late = EndTransactionError(f"the producer was closed before the END was given; {_NOT_LOST}")
        return settled_ticket(entry, late)

    @property
    def has_room(self) -> bool:
        """Whether decisions are acknowledged fast enough for further transactions."""
        return self._queue.unsettled < MAX_UNSETTLED

    def flush(self, timeout: float | None = None) -> int:
        """Wait up to `timeout` seconds (None: no limit) for all commands so far. Returns how many are unsettled."""
        with self._lock:
            mark = self._queue.set_mark()
            self._queue.hurry_all()
            self._work.notify()
            self._progress.wait_for(lambda: not DecisionQueue.left_of(mark), timeout)
            return DecisionQueue.left_of(mark)

    def close(self, timeout: float | None = None) -> int:
        """Wait up to `timeout` seconds (None: no limit) for all commands, and end. Returns how many were given up."""
        with self._lock:
            self._closing = True
            self._work.notify()
        join(self.thread, timeout)
        with self._lock:
            self._give_up = True
            left = self._queue.unsettled
            self._work.notify()
        join(self.thread)
        return left

    def _hurry_all(self) -> None:
        with self._lock:
            self._queue.hurry_all()
            self._work.notify()

    def _run(self) -> None:
        contained(self._producer.connect)(self._topic)
        while self._wait_for_work():
            with self._lock:
                lanes = self._queue.start_records(math.inf if self._closing else time.monotonic())
            for lane in lanes:
                try:
                    self._send_record(lane)
                except BaseException as error:  # noqa: BLE001  whatever it is, the thread and this lane must go on
                    report(logging.ERROR, "end_can_not_be_sent", exception=error)
                    self._settle_record(lane, EndTransactionError(f"the END cannot be sent: {error}. {_NOT_LOST}"))
        with self._lock:
            self._give_up = True
            given_up = self._queue.abandon_all()
        # Reports records in flight as failed.
        contained(self._producer.close)()
        settle_all(given_up, EndTransactionError(_CLOSED))

    def _wait_for_work(self) -> bool:
        """Wait until a record is acknowledged, or until one may be sent. Returns False when the thread must end."""
        with self._lock:
            if self._give_up or (self._closing and not self._queue.unsettled):
                return False
            due = self._queue.next_due
            pause = _IDLE_S if due is None else due - time.monotonic()
            if pause > 0 and not (self._in_flight or self._closing):
                self._work.wait(pause)
        self._serve_reports(max(0.0, min(_SERVE_S, pause)) if self._in_flight else 0.0)
        return True

    def _serve_reports(self, timeout: float) -> None:
        contained(self._producer.serve_reports)(timeout)

    def _send_record(self, lane: Lane) -> None:
        """Produce the lane's record. Its delivery report settles it, or this method if it cannot be sent."""
        entries = [ticket.entry for ticket in lane.in_flight]
        value, headers = encode_end(entries, self._group, lane.source, self._client_id, lane.reply)
        while True:
            try:
                report_to = partial(self._take_report, lane)
                self._producer.produce(self._topic, value, None, headers, report_to, lane.partition)
            except BufferError:
                # Only if the user sets a tiny queue.buffering.max.messages, because each lane has one record there.
                self._serve_reports(_SERVE_S)
                if not self._give_up:
                    continue
                self._settle_record(lane, EndTransactionError(_CLOSED))
            except KafkaException as failure:
                self._settle_record(lane, self._log_failure(lane, failure.args[0]))
            else:
                self._in_flight += 1
            return

    def _take_report(self, lane: Lane, error: KafkaError | None, record: Record) -> None:
        self._in_flight -= 1
        if error is None:
            self._connection.note_answer()
            self._settle_record(lane, None)
        else:
            if error.code() == MSG_TIMED_OUT:
                self._connection.note_time_out("ENDs", record.latency() or 0.0)
            self._settle_record(lane, self._log_failure(lane, error))

    def _settle_record(self, lane: Lane, error: EndTransactionError | None) -> None:
        with self._lock:
            tickets = self._queue.finish_record(lane)
            self._progress.notify_all()
        settle_all(tickets, error)

    def _log_failure(self, lane: Lane, error: KafkaError) -> EndTransactionError:
        report(
            logging.ERROR,
            "end_not_acknowledged",
            transactions=len(lane.in_flight),
            first=short_id(lane.in_flight[0].entry.transaction_id),
            partition=lane.partition,
            error=error.name(),
            next="the worker will ask check_local_transaction",
        )
        why = self._connection.explain_error(error)
        return EndTransactionError(
            f"the END was not acknowledged by Kafka (topic {self._topic}): {why}. {_NOT_LOST}", error
        )
