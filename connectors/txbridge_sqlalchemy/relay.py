"""The relay: it sends the rows of an outbox table to their topics, each visible once and in order.

One relay of an outbox works, and others stand by. It repeats these steps:

1. It reads the next rows, up to the last one that no row can precede any more (relay_course.py).
2. One Kafka transaction holds the rows, each for its own topic, and one record of the *progress*: the number of the
   batch, and id and hash of each row.
3. One transaction of the database advances the number in the table of the state from the batch before to this one, if
   this relay is still its owner, and deletes the rows.

It begins with a take-over, and so it does after anything whose outcome it does not know:

a. It writes itself into the state as the owner.
b. It takes the fence: Kafka ends the transaction of every earlier relay, and refuses all that they still send.
c. It writes a record of its own to the progress, and reads the progress from the place in the state up to that record.
d. Of batches behind the number in the state it deletes the rows with the same id and hash, as in 3.

Why no row is lost: a row is deleted only in 3 and d, after Kafka has committed the batch that holds it.

Why none is visible twice: its first copy is visible together with a record of the progress that names it. Let a relay
send it again. It has read the row after its take-over or after its own last 3. In the second case it has deleted all
that it had sent. In the first the row was there behind d. The fence in b comes before c. So each transaction of an
earlier relay was over before c. If it was committed, c has read its progress: what was acknowledged before the record
of c is in front of it in the log, on every leader of that partition. So d has deleted the row, unless its batch was not
behind the number in the state. But then 3 of that batch was committed, and has deleted it. A row that d cannot delete
is not sent again either: the relay stops.

Why the order is kept: rows are read in their order. As far as the database can say it, there will never be another row
before the last one that is read. A batch is sent only after Kafka has committed the one before. A row that cannot be
sent holds up the later ones of its key (relay_blocks.py).

Why a relay that was stopped for an hour does no harm: whatever it sends is refused by Kafka because of b. Its 3 fails
because of a: the owner is another one. If it is 3 that comes first, its batch was committed before b, and d finds the
number already advanced. The lock of the outbox only saves work, and it may be lost, or be had by two.

After each failure the relay, or the next one, begins with a: the process has died at some step, a session has ended, an
answer is missing, Kafka or the database was away. It may also have come back with an older state.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from confluent_kafka import KafkaException
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from txbridge.backoff import Backoff
from txbridge.client.base.log import report
from txbridge.errors import TxBridgeError
from txbridge.failpoints import fault_point
from txbridge.kafka.errors import (
    AbortedError,
    FencedError,
    IndefiniteError,
    RecordKind,
    RecordsRefusedError,
    TakeOverRefusedError,
)
from txbridge.kafka.topic_lookup import TOO_LARGE
from txbridge_sqlalchemy.batch_writer import BatchWriter, ProgressPlace
from txbridge_sqlalchemy.half_settling import HalfSettling
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_state import OutboxState, StateRow
from txbridge_sqlalchemy.relay_blocks import Head
from txbridge_sqlalchemy.relay_course import MOST_BYTES, MOST_ROWS, BatchCut, Pace
from txbridge_sqlalchemy.row import first_line

#: Seconds between two attempts to take the outbox over, so that a dead relay's rows go on about so soon.
_TAKE_EVERY_S = 1.0
#: Seconds between two looks whether a pooler has exchanged the session.
_SESSION_EVERY_S = 1.0
#: Pauses (s) after a failure. The first is short, as a lost session or an election is over soon. The longest one is the
#: longest delay after an outage of Kafka or the database.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: Seconds of failures after which the lock is given back: a relay on another machine may reach Kafka.
_VAIN_S = 10.0
#: Longest wait (s) for a notification: then the thread looks whether it has to end.
_WAIT_S = 1.0
#: Pause (s) after a lost connection. Meanwhile the relay polls all the same.
_RETRY_S = 2.0
#: Seconds after which an idle relay writes to its progress again, long before Kafka deletes what it reads at a start.
_RENEW_S = 86_400.0
#: Seconds after which a relay that is fenced by that of a copy tries again: each attempt fences the other one.
_COPY_S = 600.0


class RelayWatcher(Protocol):
    """Counts what a relay does."""

    def on_batch(self, outcome: str, rows: int) -> None:
        """A batch was `committed`, or `aborted`."""

    def on_blocked(self, head: Head) -> None:
        """A row cannot be sent. Called once for each."""


class _BlamedError(Exception):
    """A batch was aborted, and what Kafka has refused will not be in the next one."""


class Relay:
    """Takes an outbox over, and sends its rows."""

    def __init__(
        self, rows: OutboxRows, state: OutboxState, writer: BatchWriter, settling: HalfSettling, watcher: RelayWatcher
    ) -> None:
        self._rows = rows
        self._state = state
        self._writer = writer
        self._settling = settling
        self._watcher = watcher
        self._cut = BatchCut()
        self._pace = Pace()
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._ended = threading.Event()
        #: Set when rows were committed since the last read began.
        self._news = threading.Event()
        #: Deletes the rows of a batch and reads on while Kafka commits the next one.
        self._aside = ThreadPoolExecutor(1, "txbridge-relay-sql")
        self._owner = ""
        #: The last batch that Kafka has committed, the place behind its progress, and its rows until they are deleted.
        self._batch = self._position = 0
        self._sent: list[OutboxRow] | None = None
        self._took_over_at = 0.0
        self._failing_since: float | None = None
        #: Those that were logged since then.
        self._reasons = set[str]()
        self._checked_at = 0.0
        #: Why rows are not sent; empty if they are.
        self.problem = "the relay is starting"
        #: Whether this relay is the owner, and not one that stands by.
        self.is_working = False

    def run(self, ended: threading.Event) -> None:
        """Send rows until `ended` is set. Then finish the batch, and leave the outbox to the next relay."""
        self._ended = ended
        try:
            while not ended.is_set():
                self._try_once()
        finally:
            self._aside.shutdown()
            self._settling.close()
            self._rows.close()

    def wake(self) -> None:
        """Let it read now if it has found no row lately: some were committed."""
        self._news.set()

    def _try_once(self) -> None:
        """Work as long as all goes well."""
        try:
            # It is the row whose lock is taken.
            self._state.read_state()
            if not self._rows.try_lock():
                self._note_success()
                self._ended.wait(_TAKE_EVERY_S)
                return
            self._take_over()
            self._serve()
            if self._ended.is_set():
                # Nothing is on its way: the next relay needs no look at the progress.
                self._state.leave_outbox(self._owner)
        except _BlamedError:
            # The rows at fault wait now, and the others do not.
            pass
        except FencedError:
            self._be_fenced()
        except Exception as error:  # noqa: BLE001  whatever it is, the rows are still there, and it is tried again
            self._note_failure(error)
        finally:
            self.is_working = False

    def _take_over(self) -> None:
        """Become the owner, and delete what earlier ones have made visible."""
        before = self._state.read_state()
        self._rows.name_outbox(before.identity)
        place = self._place_of(before)
        is_there = before.topic_id == place.topic_id and place.start <= (before.position or 0) <= place.end
        # The state of a first start may be what a database has come back with.
        elsewhere = place.start if before.topic_id is None else place.end
        position = (before.position or 0) if is_there else elsewhere
        owner, self._sent = secrets.token_hex(16), None
        self._state.take_outbox(before, owner, (place.topic_id, place.partition, position))
        self._owner, self._batch, self._position = owner, before.batch, position
        fault_point("relay.taken")
        for named, behind in self._writer.take_over(before.identity, owner, before.batch, place, position):
            if named.batch != self._batch + 1:
                raise TakeOverRefusedError(
                    f"the progress of {self._rows.table.name} goes on with batch {named.batch} behind {self._batch}: "
                    f"records of it are lost. {self._acceptance(self._batch, self._position)}"
                )
            found = self._state.confirm_named(owner, named.batch, behind, named.rows)
            report(logging.INFO, "relay_recovered", batch=named.batch, rows=len(named.rows), deleted=found)
            self._batch, self._position = named.batch, behind
        self._state.note_position(owner, self._batch, self._writer.position)
        self._rows.forget_reads()
        self._took_over_at = time.monotonic()
        self.is_working = True
        report(logging.INFO, "relay_took_over", table=self._rows.table.name, batch=self._batch)
        self._note_success()

    def _place_of(self, state: StateRow) -> ProgressPlace:
        """Where the progress is. Raises TakeOverRefusedError if it is not where the state says, and that matters."""
        place = self._writer.find_place(state.identity, (state.topic_id, state.partition))
        if state.owner is None or state.topic_id is None:
            return place
        if state.topic_id != place.topic_id:
            found = f"was {state.topic_id} and is {place.topic_id}: it was made again, or is another Kafka's"
        elif not place.start <= (state.position or 0) <= place.end:
            found = f"has the offsets {place.start} to {place.end}, and lacks {state.position}"
        else:
            return place
        raise TakeOverRefusedError(
            f"the topic of the progress of {self._rows.table.name} {found}. What the last relay has sent cannot be "
            f"read any more. {self._acceptance(state.batch, state.position)}"
        )

    def _acceptance(self, batch: int, position: int | None) -> str:
        """What a person does who accepts that rows may become visible twice. Each attempt says the same."""
        where = f"batch = {batch} AND position = {position}"
        command = f"UPDATE {self._rows.table.state.fullname} SET owner = NULL, topic_id = NULL WHERE {where}"  # noqa: S608
        return f"Its last batch may be visible while its rows are still there: delete what is visible, then {command}"

    def _serve(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            self._news.clear()
            if began - self._checked_at > _SESSION_EVERY_S:
                self._checked_at = began
                self._rows.require_session()
            rows = self._rows.read_rows(MOST_ROWS, MOST_BYTES)
            fault_point("relay.read")
            found = False
            while rows and not self._ended.is_set():
                batch = self._choose_batch(rows)
                found = found or bool(batch)
                rows = self._send_batch(batch, can_read_on=len(batch) == len(rows)) if batch else []
            self._confirm_sent()
            # Last: after a refusal all begins anew, and many heads would keep others from their turn.
            found = self._probe_blocks(began) or found
            if not found and began - self._took_over_at > _RENEW_S:
                return
            took = time.monotonic() - began
            pause = self._pace.next_pause(found=found, is_gate_closed=self._rows.is_gate_closed, took=took)
            # After some rows others share the next batch, so news of them can wait.
            (self._ended if found else self._news).wait(pause)

    def _choose_batch(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Those of the rows that go into the next batch. Blocks what Kafka would refuse.

        A head has to be the first row of its key. One that has others before it is blocked once these are gone.
        """
        blocks = self._rows.blocks
        batch = self._cut.cut_batch(blocks.without_blocked(rows))
        refusals = self._writer.list_refusals(batch)
        if not refusals:
            # Nearly always.
            return self._without_waiting(batch)
        free, going, held = list[OutboxRow](), set[Any](), set[Any]()
        for row in batch:
            where, refusal = None if row.key is None else (row.topic, row.key), refusals.get(row.id)
            if where in held:
                continue
            if refusal is None:
                free.append(row)
                going.add(where)
            elif where is not None and where in going:
                held.add(where)
            elif blocks.without_blocked([row]):
                self._block_row(row, refusal.reason, whole_topic=refusal.whole_topic)
        return self._without_waiting(blocks.without_blocked(free))

    def _without_waiting(self, batch: list[OutboxRow]) -> list[OutboxRow]:
        """The batch without rows for which a worker is needed, and does not come. Others pass them."""
        stored = [row for row in batch if row.after is not None]
        if not stored or self._settling.settle_rows(stored):
            return batch
        self._rows.blocks.hold_stored(time.monotonic())
        return self._rows.blocks.without_blocked(batch)

    def _block_row(self, row: OutboxRow, reason: str, *, whole_topic: bool) -> None:
        head = self._rows.blocks.block_row(row, reason, time.monotonic(), whole_topic=whole_topic)
        if head is not None:
            self._watcher.on_blocked(head)

    def _probe_blocks(self, now: float) -> bool:
        """Send the heads of blocks by themselves, if it is time for that. Returns whether other rows may go now."""
        blocks = self._rows.blocks
        has_lifted = blocks.release_stored(now)
        for head in blocks.list_due(now):
            # Whatever comes, the next attempt is not at once.
            blocks.postpone_head(head, now)
            found = self._rows.read_again([head.row.name])
            refusal = self._writer.list_refusals(found).get(head.row.id) if found else None
            # The limit is for what is compressed.
            if refusal is not None and refusal.reason != TOO_LARGE:
                head.reason = refusal.reason
                continue
            if found and not self._without_waiting(found):
                continue
            if found:
                self._send_batch(found, can_read_on=False)
                self._confirm_sent()
            blocks.lift_block(head)
            has_lifted = True
        if has_lifted:
            self._rows.forget_reads()
        return has_lifted

    def _send_batch(self, batch: list[OutboxRow], *, can_read_on: bool) -> list[OutboxRow]:
        """Send a batch. Meanwhile delete the one before, and return the rows behind it, if they can be read."""
        began, aside = time.monotonic(), None
        if can_read_on and self._rows.can_read_beyond:
            aside = self._aside.submit(self._confirm_and_read)
        else:
            self._confirm_sent()
        try:
            position = self._writer.write_batch(self._batch + 1, batch)
        except RecordsRefusedError as error:
            self._watcher.on_batch("aborted", len(batch))
            if not self._blame(batch, error):
                raise
            raise _BlamedError from error
        except (AbortedError, IndefiniteError):
            self._cut.note_timed_out(batch)
            raise
        finally:
            # What it does counts, whatever became of the batch.
            error_aside = None if aside is None else aside.exception()
        self._cut.note_taken(batch, time.monotonic() - began)
        self._watcher.on_batch("committed", len(batch))
        rows = [] if aside is None or error_aside is not None else aside.result()
        self._batch, self._position, self._sent = self._batch + 1, position, batch
        if error_aside is not None:
            raise error_aside
        return rows

    def _confirm_and_read(self) -> list[OutboxRow]:
        self._confirm_sent()
        return self._rows.read_beyond(MOST_ROWS, MOST_BYTES)

    def _confirm_sent(self) -> None:
        """Delete the rows of the last batch."""
        if self._sent is not None:
            self._state.confirm_batch(self._owner, self._batch, self._position, self._sent)
            self._sent = None

    def _blame(self, batch: Sequence[OutboxRow], error: RecordsRefusedError) -> bool:
        """Block what Kafka has refused. Returns False for an error of the progress, which blames no row."""
        if any(one.kind is not RecordKind.REAL for one in error.failures):
            self._cut.note_timed_out(batch)
            return False
        for one in error.failures:
            rows = [row for n, row in enumerate(batch) if row.topic == one.topic and one.which in {None, n}]
            if one.whole_topic:
                self._block_row(rows[0], one.reason, whole_topic=True)
            elif len(rows) == 1 and rows[0] is self._first_of_key(rows[0], batch):
                self._block_row(rows[0], one.reason, whole_topic=False)
            else:
                self._cut.suspect_topic(one.topic)
        return True

    @staticmethod
    def _first_of_key(row: OutboxRow, batch: Sequence[OutboxRow]) -> OutboxRow:
        """What has to be the head, if this row cannot be sent."""
        same = (one for one in batch if (one.topic, one.key) == (row.topic, row.key))
        return row if row.key is None else next(same)

    def _be_fenced(self) -> None:
        """Find out who has the fence. Kafka itself takes it from a relay that stood still in a transaction."""
        since = max(self._position, self._writer.position)
        try:
            is_ours = self._state.read_state().owner == self._owner
            is_copied = is_ours and self._writer.find_other_owner(self._owner, since)
        except (SQLAlchemyError, KafkaException, TxBridgeError) as failure:
            self._note_failure(failure)
            return
        if not is_copied:
            report(logging.INFO, "relay_left", table=self._rows.table.name)
            self._rows.close()
            self._ended.wait(_FIRST_PAUSE_S)
            return
        self._owner = ""
        values = f"identity = '{secrets.token_hex(8)}', owner = NULL"
        command = f"UPDATE {self._rows.table.state.fullname} SET {values}"  # noqa: S608
        self.problem = (
            "another database has the identity of this outbox, as after a copy, and its relay has taken the fence. End "
            f"both, and give the copy an identity of its own: {command}"
        )
        report(logging.ERROR, "relay_stopped", reason=self.problem)
        self._rows.close()
        self._ended.wait(_COPY_S)

    def _note_failure(self, error: BaseException) -> None:
        """Note a failure, and wait before the next take-over."""
        # Only a driver's error has a statement behind its first line.
        said = first_line(error) if isinstance(error, SQLAlchemyError) else " ".join(str(error).split())
        now, reason = time.monotonic(), f"{type(error).__name__}: {said}"
        if reason not in self._reasons:
            # What came first is perhaps only a consequence.
            report(logging.WARNING, "relay_waits", table=self._rows.table.name, reason=reason)
            self._reasons.add(reason)
        if self._failing_since is None:
            self._failing_since = now
        self.problem = reason
        if now - self._failing_since > _VAIN_S:
            self._rows.close()
        self._ended.wait(self._backoff.next())

    def _note_success(self) -> None:
        self._backoff.reset()
        self.problem = ""
        if self._failing_since is not None:
            self._failing_since = None
            self._reasons.clear()
            report(logging.INFO, "relay_goes_on", table=self._rows.table.name)


def listen_for_commits(engine: Engine, channel: str, on_commit: Callable[[], None], ended: threading.Event) -> None:
    """Call `on_commit` after each NOTIFY of an `Outbox(notify=True)`, in a thread, until `ended` is set.

    Only with the driver psycopg. With others, and other databases, the relay polls, as it does in any case.
    """
    if (engine.dialect.name, engine.dialect.driver) != ("postgresql", "psycopg"):
        return
    listening = threading.Thread(
        target=_listen, args=(engine, channel, on_commit, ended), name="txbridge-listen", daemon=True
    )
    listening.start()


def _listen(engine: Engine, channel: str, on_commit: Callable[[], None], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            _listen_once(engine, channel, on_commit, ended)
        except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
            report(logging.DEBUG, "relay_listens_again", reason=first_line(error))
            ended.wait(_RETRY_S)


def _listen_once(engine: Engine, channel: str, on_commit: Callable[[], None], ended: threading.Event) -> None:
    quoted = engine.dialect.identifier_preparer.quote_identifier(channel)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            connection.exec_driver_sql(f"LISTEN {quoted}")
            driver = connection.connection.driver_connection
            assert driver is not None
            while not ended.is_set():
                for _ in driver.notifies(timeout=_WAIT_S, stop_after=1):
                    on_commit()
        finally:
            # Not back into the pool: it listens.
            connection.invalidate()
