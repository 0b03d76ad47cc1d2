"""The decisions of a relay that need neither Kafka nor the database: how far it reads, in which batches, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from txbridge.core.plan.choice import Limits, TransactionSize
from txbridge_sqlalchemy.outbox_messages import OutboxRow

#: Most rows and bytes of a batch; readers wait for the whole of one. With 1,000 rows a backlog came at two thirds of
#: the rate, as each batch waits for Kafka.
MOST_ROWS, MOST_BYTES = 5_000, 1024 * 1024

#: Pause (s) between the beginnings of two reads while there are some rows. A Kafka transaction costs the same for one
#: row as for five hundred, so at 200 rows/s ten of them share one.
BUSY_PAUSE_S = 0.065
#: First pause (s) without rows, and while the newest ones wait for transactions that write: they are soon over.
_FIRST_PAUSES_S = {False: BUSY_PAUSE_S, True: 0.004}
#: Longest pause (s) without rows: four short queries a second are a thousandth of a processor.
IDLE_PAUSE_S = 0.25
#: Factor from one pause without rows to the next. So the longest pause begins after a quiet second.
_SLOWING = 1.3
#: Factor by which the rows of a suspect topic grow in a batch, each time that Kafka has taken them.
_TRUST = 4


class Pace:
    """When the outbox is read next."""

    def __init__(self) -> None:
        self._pauses = dict(_FIRST_PAUSES_S)

    def next_pause(self, *, found: bool, is_gate_closed: bool, took: float) -> float:
        """Pause (s) after a read that has `found` rows or not, and, if so, a batch; together they `took` seconds."""
        if found:
            self._pauses = dict(_FIRST_PAUSES_S)
            return max(0.0, BUSY_PAUSE_S - took)
        pause = self._pauses[is_gate_closed]
        self._pauses[is_gate_closed] = min(pause * _SLOWING, IDLE_PAUSE_S)
        return pause


class OutboxGate:
    """The place up to which an outbox may be read, so that no row is overtaken by one with a higher id.

    On PostgreSQL. An INSERT locks the table (RowExclusiveLock) before it draws an id, and its transaction or savepoint
    keeps that lock until its rows are visible, or dropped. A relay looks at the newest row and at who has the lock, in
    one statement. That reads the locks while it runs, which is after the moment as of which it sees rows. Ids grow.

    A writer that a look does not find has ended by then, or takes the lock later. In the first case its rows are
    visible to each statement that begins later. In the second it draws ids above that newest row. So a writer that was
    not there at the look before only adds rows after the newest one of that look, and of all earlier ones. Up to this
    place of the writer that came first, a statement that begins after the look sees each row that there will ever be.

    A writer is named by its virtual transaction id, which is not used again, and which a prepared transaction keeps.
    """

    def __init__(self) -> None:
        #: The place in the order up to which rows may be read; None if there is no such row.
        self.bound: Any = None
        self._newest: Any = None
        #: Each writer with the newest row of the look before it came. Those that came first are the first.
        self._writers: dict[str, Any] = {}

    @property
    def is_closed(self) -> bool:
        """Whether there is a row that must not be read yet."""
        return bool(self.bound != self._newest)

    def note_look(self, newest: Any, writers: Collection[str]) -> None:
        """Note the place of the newest row, None without any, and who had the lock.

        Rows up to `bound` may be read by statements that begin afterwards.
        """
        known = {writer: place for writer, place in self._writers.items() if writer in writers}
        self._writers = known | {writer: self._newest for writer in writers if writer not in known}
        self._newest = newest
        # Without a newer row nobody has to be waited for.
        self.bound = newest if newest in {None, self.bound} else next(iter(self._writers.values()), newest)


class BatchCut:
    """How many of the next rows go into a batch.

    After a time-out there are fewer. After a refusal that names no row, there is one of that topic in the next batch:
    so the row at fault is soon alone, and the others of its batch were not.
    """

    def __init__(self) -> None:
        self._size = TransactionSize(Limits(MOST_ROWS, MOST_BYTES))
        self._suspects: dict[str, int] = {}

    def cut_batch(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """The first of these rows that go together: at least one, if there is one."""
        if not self._suspects and not self._size.is_shrunk and len(rows) <= MOST_ROWS:
            # As the database has cut them.
            return list(rows)
        limits, taken = self._size.limits, list[OutboxRow]()
        size, of_topic = 0, Counter[str]()
        for row in rows:
            topic = str(row.topic)
            if taken and (len(taken) >= limits.entries or size + row.size > limits.bytes):
                break
            if self._suspects and of_topic[topic] >= self._suspects.get(topic, MOST_ROWS):
                continue
            taken.append(row)
            of_topic[topic] += 1
            size += row.size
        return taken

    def note_taken(self, rows: Sequence[OutboxRow], seconds: float) -> None:
        """Note that a batch was committed after so many seconds."""
        if self._size.is_shrunk:
            self._size.got_through(len(rows), sum(row.size for row in rows), seconds)
        for topic in {str(row.topic) for row in rows} & self._suspects.keys():
            self._suspects[topic] *= _TRUST
            if self._suspects[topic] >= MOST_ROWS:
                del self._suspects[topic]

    def note_timed_out(self, rows: Sequence[OutboxRow]) -> None:
        """Note that a batch was not committed in time."""
        self._size.timed_out(len(rows), sum(row.size for row in rows), in_part=True)

    def suspect_topic(self, topic: str) -> None:
        """Note that the topic has refused rows, and not said which."""
        self._suspects[topic] = 1
