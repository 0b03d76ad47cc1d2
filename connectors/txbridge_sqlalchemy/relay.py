"""The relay: it sends the rows of an outbox table as transactional messages, each once and in order.

Rows are spread over lanes by the hash of their keys, and a lane is a partition of HALF. The relay that holds a lane
repeats these steps for its next rows:

1. It reads the lane's entry in the table of lanes, which names the last batch: transaction id, partition and offset.
2. Unless this relay has seen it acknowledged, it sends the END of that batch again, and waits until Kafka has it.
3. It reads the next rows by their ids, up to the last one that no row can precede any more (outbox_gate.py).
4. It sends them as one half message to the lane's partition, and waits until Kafka has it.
5. One transaction of the database writes the transaction's row in `txbridge_transactions`, puts the new batch in the
   place of the old one in the lane's entry, and deletes the rows. If the entry does not name the old batch any more, or
   one of the rows is not there, it is rolled back.
6. COMMIT, then the END with "commit". Back to 2, for this batch.

Why no row is lost or sent twice: a half message becomes visible only if its row in `txbridge_transactions` is
committed, as for any transaction of SqlTransactionListener. That commit also deletes the rows. So of all half messages
that hold a row, from all relays, one at most can be committed. And a row is deleted only together with such a commit.

Why the order is kept: the rows of 3 come in the order of their ids. As far as the database can say it, there will never
be another row before the last of them. The worker delivers what one partition of HALF holds in the order of the
decisions in END. The commit of a batch requires in step 5 that the lane's entry names the batch before it, and a relay
does step 5 only after Kafka has acknowledged the END of that one. So the END of each batch is in the log before the
next batch can be committed, and so before any process can send the END of that next one. The first decision counts: one
that is sent again changes nothing.

What each failure does:

- The relay dies before 4 is over, or before COMMIT: the rows are still in the table, and the next holder of the lane
  sends them. The half message that stays behind has no row in `txbridge_transactions`. A check rolls it back.
- It dies while COMMIT is answered, or before the END is acknowledged: if the batch is committed, the next holder finds
  it in the lane's entry and sends its END (1, 2). If not, its rows are still there.
- Two relays work on one lane, because a lock's session has ended or a relay was stopped for an hour. Of two batches
  with the same row, or with the same batch before them, one fails in 5, and its relay begins with 1. The lock of a lane
  only saves such attempts.
- COMMIT is not answered, or the session ends anywhere: the outcome is unknown, and the relay begins with 1. If the
  database has not ended that transaction yet, its locks keep the next one waiting in 5, which then fails if the first
  was committed.
- Kafka does not acknowledge the half message: nothing is deleted, and a check rolls it back if it is there after all.
  Kafka does not acknowledge the END: it is sent again, and nothing else of the lane before that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from txbridge.client.base.log import report
from txbridge.client.lane_producer import LaneProducer
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.relay_course import LaneShare
from txbridge_sqlalchemy.relay_lane import LaneRelay, RelayWatcher
from txbridge_sqlalchemy.row import first_line

#: Seconds between two attempts to take lanes, so that a dead relay's rows go on about so soon.
TAKE_EVERY_S = 1.0
#: Longest wait (s) for a notification: then the thread looks whether it has to end.
_WAIT_S = 1.0
#: Pause (s) after a lost connection. Meanwhile the relay polls all the same.
_RETRY_S = 2.0


class Relay:
    """Takes lanes of an outbox table, and sends their rows."""

    def __init__(self, rows: OutboxRows, producer: LaneProducer, watcher: RelayWatcher) -> None:
        self._rows = rows
        self._asking = threading.Lock()
        self._producer = producer
        self._watcher = watcher
        self._lanes: dict[int, LaneRelay] = {}
        self._share = LaneShare()
        #: Why lanes cannot be taken; empty if they can.
        self._problem = ""

    def run(self, ended: threading.Event) -> None:
        """Send rows until `ended` is set. Then finish the batches that are committed, and give the lanes back."""
        try:
            while not ended.is_set():
                self._take_lanes()
                ended.wait(TAKE_EVERY_S)
        finally:
            self._stop_lanes(list(self._lanes))
            with self._asking:
                self._rows.close()

    @property
    def lanes(self) -> int:
        """Number of lanes that this relay holds."""
        return len(self._lanes)

    def list_problems(self) -> list[str]:
        """Why rows are not sent; empty if they are, or if other relays hold all lanes."""
        problems = [self._problem] if self._problem else []
        lanes = sorted(self._lanes.items())
        return problems + [f"lane {lane}: {one.problem}" for lane, one in lanes if one.problem]

    def wake_lanes(self) -> None:
        """Let lanes read that have found no row lately: some were committed."""
        for one in tuple(self._lanes.values()):
            one.wake()

    def _take_lanes(self) -> None:
        try:
            with self._asking:
                if self._share.may_take():
                    self._rows.take_lanes(self._rows.lanes)
                is_wanted = len(self._lanes) > 1 and self._rows.is_lane_wanted()
            self._give_back(self._share.count_surplus(len(self._lanes), is_wanted=is_wanted))
        except SQLAlchemyError as error:
            if not self._problem:
                report(logging.WARNING, "relay_takes_no_lanes", reason=first_line(error))
            self._problem = f"lanes cannot be taken: {first_line(error)}"
        else:
            self._problem = ""
        held = set(self._rows.held)
        self._stop_lanes([lane for lane in self._lanes if lane not in held])
        for lane in held - self._lanes.keys():
            self._lanes[lane] = LaneRelay(lane, self._rows, self._asking, self._producer, self._watcher)
            self._lanes[lane].start()
            report(logging.INFO, "relay_lane_taken", lane=lane)

    def _give_back(self, number: int) -> None:
        """Leave so many lanes to a relay that has none."""
        lanes = list(self._lanes)[:number]
        self._stop_lanes(lanes)
        with self._asking:
            self._rows.give_lanes_back(lanes)

    def _stop_lanes(self, lanes: list[int]) -> None:
        """Wait until these lanes have finished their batches."""
        for lane in lanes:
            self._lanes[lane].stop()
        for lane in lanes:
            self._lanes.pop(lane).join()
            report(logging.INFO, "relay_lane_left", lane=lane)


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
