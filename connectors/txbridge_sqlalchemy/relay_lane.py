"""One lane of a relay: the steps of relay.py, one after another, in a thread."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from txbridge.backoff import Backoff
from txbridge.client.answers import LocalTransactionState, Rollback
from txbridge.client.base.log import report
from txbridge.client.lane_producer import LaneProducer
from txbridge.client.message import MessageExt, now_ms
from txbridge.client.outbox_values import EarlierEnd
from txbridge.core.message_frames import MOST_MESSAGES
from txbridge.errors import UsageError
from txbridge.failpoints import fault_point
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import LaneState, OutboxRows
from txbridge_sqlalchemy.relay_course import MOST_BYTES, Batch, LaneCourse, LaneStep, Pace, RowsByFate
from txbridge_sqlalchemy.row import first_line
from txbridge_sqlalchemy.sql_listener import SqlTransactionListener

#: Pauses (s) after a step that failed. The first is short, as a lost session or an election is over soon. The longest
#: one is the longest delay after an outage of Kafka or the database.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
#: Seconds that a lane which is stopped tries to finish its batch. The client's end may take 15 s more, and
#: docs/operations.md asks for 25 s between SIGTERM and SIGKILL.
_FINISH_S = 8.0
#: Seconds between two looks whether that time is over.
_LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class Deletion:
    """What the local transaction of a batch does."""

    rows: OutboxRows
    lane: int
    before: LaneState | None
    ids: tuple[object, ...]
    #: Why its outcome is not known.
    error: SQLAlchemyError | None = None


class RelayListener(SqlTransactionListener):
    """Runs the local transactions of a relay, and answers the checks of its producer group."""

    def __init__(self, engine: Engine, patience: float) -> None:
        super().__init__(engine, _delete_rows, patience=patience)

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Any:
        fault_point("relay.half_stored")
        try:
            state = super().execute_local_transaction(message, arg)
        except SQLAlchemyError as error:
            # The lane reports it, in one line for an outage. The client would log a trace.
            arg.error = error
            return LocalTransactionState.UNKNOWN
        fault_point("relay.committed")
        return state

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        try:
            return super().check_local_transaction(message)
        except SQLAlchemyError as error:
            # As above. `/readyz` has the reason, too.
            report(logging.DEBUG, "relay_check_waits", reason=first_line(error))
            return LocalTransactionState.UNKNOWN


def _delete_rows(connection: Connection, message: MessageExt, deletion: Deletion) -> bool:
    after = LaneState(message.transaction_id, message.half_partition, message.half_offset)
    deleted = deletion.rows.delete_batch(connection, deletion.lane, deletion.before, after, deletion.ids)
    fault_point("relay.deleted")
    return deleted


class RelayWatcher(Protocol):
    """Counts what a relay does; called by the threads of all lanes."""

    def on_batch(self, outcome: str, rows: int) -> None:
        """A batch was `committed`, or `rolled_back` because another relay was faster."""

    def on_refusal(self, lane: int, row_id: Any, reason: str) -> None:
        """A row cannot be sent. It is left out for a minute."""


class LaneRelay:
    """Sends the rows of one lane in a thread of its own, while this relay holds the lane."""

    def __init__(
        self, lane: int, rows: OutboxRows, asking: threading.Lock, producer: LaneProducer, watcher: RelayWatcher
    ) -> None:
        """`asking` is held while the session of `rows` is used."""
        self._lane = lane
        self._rows = rows
        self._asking = asking
        self._producer = producer
        self._watcher = watcher
        self._course = LaneCourse()
        self._pace = Pace()
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._read = RowsByFate()
        self._is_gate_closed = False
        #: When rows were first seen that still wait at the gate.
        self._waited_since: float | None = None
        #: END of the last batch of this relay, until it was waited for.
        self._end: Future[None] | None = None
        #: The last batch of the lane when one of this relay was rolled back without an error, in a tuple.
        self._lost_after: tuple[LaneState | None] | None = None
        #: Why the last step has failed; empty if it has not.
        self.problem = ""
        self._stopping = threading.Event()
        self._finish_by = math.inf
        #: Set when rows were committed since the last read began, and at the end.
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"txbridge-lane-{lane}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its batch. Returns at once."""
        self._finish_by = time.monotonic() + _FINISH_S
        self._stopping.set()
        self._news.set()

    def wake(self) -> None:
        """Let it read now if it has found no row lately."""
        self._news.set()

    def join(self) -> None:
        """Wait for the end of the thread, which comes when its batch is finished, or cannot be for some seconds."""
        self._thread.join()

    def _run(self) -> None:
        # A batch that is committed is finished, also at the end.
        while not self._stopping.is_set() or (self._is_unfinished() and time.monotonic() < self._finish_by):
            try:
                self._do_next_step()
            except BaseException as error:  # noqa: BLE001  whatever it is, the rows are still there, and it is tried again
                self._begin_again(error)
        if self._is_unfinished():
            report(
                logging.WARNING,
                "relay_end_left",
                lane=self._lane,
                next="the next relay sends the END of its batch, if any",
            )

    def _is_unfinished(self) -> bool:
        """Whether Kafka may lack the END of a batch."""
        return self._course.next_step is not LaneStep.SEND_BATCH

    def _do_next_step(self) -> None:
        """Do what comes next, and rest if there is little to do."""
        match self._course.next_step:
            case LaneStep.READ_STATE:
                with self._asking:
                    self._course.note_state(self._rows.lane_state(self._lane))
            case LaneStep.SETTLE_END:
                self._settle_end()
            case LaneStep.SEND_BATCH:
                self._send_batch()

    def _settle_end(self) -> None:
        last = self._course.state
        assert last is not None
        end, self._end = self._end, None
        if end is None:
            end = self._producer.send_commit_again(*last)
        self._wait_for(end)
        fault_point("relay.end_stored")
        self._course.note_end_stored()

    def _wait_for(self, end: Future[None]) -> None:
        # Without a limit until the lane is stopped: it resolves when Kafka has it, or when the client has given it up.
        while not end.done() and time.monotonic() < self._finish_by:
            wait([end], _LOOK_EVERY_S)
        end.result(0)

    def _send_batch(self) -> None:
        began = self._waited_since or time.monotonic()
        if not self._read:
            self._news.clear()
            self._read_rows()
            fault_point("relay.read")
        found = bool(self._read)
        if found:
            self._send(self._read.take_batch(self._producer.limits.value))
        self._note_success()
        self._waited_since = began if self._is_gate_closed and not found else None
        if not self._read:
            took = time.monotonic() - began
            pause = self._pace.next_pause(found=found, is_gate_closed=self._is_gate_closed, took=took)
            # After some rows others share the next batch, so news of them can wait.
            (self._stopping if found else self._news).wait(pause)

    def _read_rows(self) -> None:
        with self._asking:
            rows = self._rows.read_rows(self._lane, MOST_MESSAGES, MOST_BYTES)
            self._is_gate_closed = self._rows.is_gate_closed
        self._settle_senders(rows)
        self._producer.real_topics.look_up_all({row.message.topic for row in rows if row.message is not None})
        refused: dict[Any, str] = {}
        for row in rows:
            reason = row.reason_against(self._producer.limits)
            if reason is None:
                self._read.add_row(row, self._fate_of(row))
            else:
                refused[row.id] = reason
        if refused:
            with self._asking:
                self._rows.skip_rows(self._lane, refused.keys())
            for row_id, reason in refused.items():
                self._watcher.on_refusal(self._lane, row_id, reason)

    def _settle_senders(self, rows: list[OutboxRow]) -> None:
        """Make sure that Kafka has the ENDs that the senders of these rows could not send (forwarding.py)."""
        ends: dict[EarlierEnd, None] = dict.fromkeys(end for row in rows for end in row.after)
        if foreign := {end.group for end in ends if end.group != self._producer.group}:
            raise UsageError(
                f"rows were stored by a service of the group {', '.join(foreign)}: start the relays with --group "
                f"{min(foreign)}, because only that group can decide what the service has sent before"
            )
        for sent in [self._producer.send_commit_again(*end[1:]) for end in ends]:
            self._wait_for(sent)

    def _fate_of(self, row: OutboxRow) -> Hashable:
        """When the worker will deliver the message, and for what it will hold it: its topic, or itself. None: now."""
        message = row.message
        assert message is not None
        due = message.deliver_at if message.deliver_at is not None and message.deliver_at > now_ms() else None
        topics = self._producer.real_topics
        if topics.is_closed(message.topic):
            return due, message.topic
        if topics.would_refuse(message):
            return due, (row.id,)
        return None if due is None else (due, None)

    def _send(self, batch: Batch) -> None:
        deletion = Deletion(self._rows, self._lane, self._course.state, batch.ids)
        result = self._producer.send_in_lane(batch.message, self._lane, deletion)
        if result.local_transaction_state is LocalTransactionState.COMMIT_MESSAGE:
            self._course.note_state(LaneState(result.transaction_id, result.half_partition, result.half_offset))
            self._end = result.end
            self._lost_after = None
            self._watcher.on_batch("committed", len(batch.ids))
        elif (error := deletion.error or result.local_exception) is not None and not isinstance(error, Rollback):
            raise error
        else:
            # Another relay was faster, or a check has rolled the batch back while this process was paused.
            self._watcher.on_batch("rolled_back", len(batch.ids))
            report(logging.WARNING, "relay_batch_rolled_back", lane=self._lane, rows=len(batch.ids))
            was_lost, self._lost_after = self._lost_after, (self._course.state,)
            if was_lost == self._lost_after:
                raise UsageError(
                    f"{len(batch.ids)} rows cannot be deleted, and no other relay was faster: look for a trigger, "
                    "row-level security, or an id that is not unique"
                )
            self._forget()

    def _forget(self) -> None:
        self._read = RowsByFate()
        self._end = None
        self._course.forget_state()

    def _begin_again(self, error: BaseException) -> None:
        """Note that a step has failed, and wait before the next one."""
        self._forget()
        problem = f"{type(error).__name__}: {first_line(error)}"
        if not self.problem:
            report(logging.WARNING, "relay_lane_waits", lane=self._lane, reason=problem)
        self.problem = problem
        if self._stopping.wait(self._backoff.next()):
            time.sleep(_FIRST_PAUSE_S)

    def _note_success(self) -> None:
        self._backoff.reset()
        if self.problem:
            self.problem = ""
            report(logging.INFO, "relay_lane_goes_on", lane=self._lane)
