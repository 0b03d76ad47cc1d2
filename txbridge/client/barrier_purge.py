"""The purge of a barrier table: which rows may go, and why no check is answered wrongly without them.

To a check, a row that is missing means "rolled back". So a purge leaves a *mark* in the table, a time: rows of messages
born before it may be gone. A check that finds no row writes "rolled back" and reads the mark, in this order, in one
database transaction. If its message was born before the mark, it takes the row back and answers "unknown".

A check therefore never rolls back a message whose local transaction was committed, whatever the age that a purge is
given. It does not matter how long a worker, a sender or a check pauses, or how many clusters and namespaces use the
table:

1. A row has the birth of its message as its time. Kafka's broker has set it, the sender has got it with the
   acknowledgement, and a check names the same number. Two leaders may have stored a half message, each with its
   clock. A row has the sender's clock if an earlier release has written it. So clocks may differ by `MARK_MARGIN`.
2. A purge deletes rows whose time is more than `MARK_MARGIN` below its mark, and only after the mark is committed.
   Marks only rise. A process of an earlier release does not read the mark: docs/upgrading.md.
3. The check's INSERT succeeds only where no row is: it waits for a transaction that has inserted or deleted one. If a
   purge has deleted the row, its mark was committed before. The check reads it after its INSERT, and finds its message
   below it. (PostgreSQL's REPEATABLE READ reads as of the beginning of the INSERT. There a late sender, a purge and a
   check would have to meet within this one statement.)

A sender that has paused before its local transaction must still collide with the row "rolled back" of a check. These
rows are few, and are kept for as long as anybody may be paused (`ROLLED_BACK_KEPT`).

What the age decides is only how many messages are answered without a person. A check carries a copy of the half
message. So the topics can ask about a message for as long as HALF has its body, also after a resume, and not at all
once it is committed (held or delayed). This is the default, with a day more for requests under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

from txbridge.client.barrier import ROLLED_BACK
from txbridge.client.message import now_ms
from txbridge.errors import UsageError
from txbridge.topics.spec import HALF_RETENTION_MS

#: Age from which on a purge deletes rows, by default.
PURGE_AFTER = timedelta(milliseconds=HALF_RETENTION_MS, days=1)
#: How far (ms) the mark is above the rows that are deleted. Clocks that are synchronized differ by far less.
MARK_MARGIN = 3_600_000
#: Least age: with it the mark is never above now.
LEAST_AGE = timedelta(milliseconds=MARK_MARGIN)
#: Age until which no purge deletes a row "rolled back".
ROLLED_BACK_KEPT = timedelta(days=36)
#: Rows of one database transaction.
PURGE_BATCH = 1_000
#: A time (ms) before all rows.
_BEGINNING = 0


class PurgedTable(ABC):
    """A table of txbridge from which old rows are deleted by their `created_at`."""

    @abstractmethod
    def find_time(self, start: int, before: int, skipped: int) -> int | None:
        """`created_at` of the oldest row within [start, before) after `skipped` others; None if there is none."""

    @abstractmethod
    def delete_rows(self, start: int, before: int, kept: str | None) -> int:
        """Delete rows within [start, before), in one transaction, but those in the state `kept`. Returns how many."""

    @abstractmethod
    def count_rows(self, start: int, before: int, kept: str | None) -> int:
        """Number of rows that `delete_rows` would delete."""

    def time_before(self, older_than: timedelta) -> int:
        """The time (ms) before which rows are older than that."""
        return _before(now_ms(), older_than)

    def purge_rows(self, older_than: timedelta, batch: int = PURGE_BATCH, *, dry_run: bool = False) -> int:
        """Delete rows older than that, oldest first; returns how many.

        With `dry_run` it only counts them. Raises UsageError for an age or a batch that is not positive.
        """
        _require_positive(older_than, batch)
        return self._purge_range(_BEGINNING, self.time_before(older_than), None, batch, dry_run)

    def _purge_range(self, start: int, before: int, kept: str | None, batch: int, dry_run: bool) -> int:
        if dry_run:
            return self.count_rows(start, before, kept)
        deleted = 0
        # Batches are ranges of time and not lists of keys: no database reads its index twice for them, and the number
        # of parameters has no limit. A range that another purge has deleted has no rows.
        first = self.find_time(start, before, 0)
        while first is not None:
            following = self.find_time(first, before, batch)
            # Rows of one millisecond go together, however many they are.
            end = before if following is None else max(following, first + 1)
            deleted += self.delete_rows(first, end, kept)
            first = None if following is None else end
        return deleted


class PurgedBarrierTable(PurgedTable):
    """A barrier table: a purge leaves its mark, and rows "rolled back" until ROLLED_BACK_KEPT."""

    @abstractmethod
    def find_newest(self) -> int | None:
        """`created_at` of the newest row below NEVER_PURGED; None if there is none."""

    @abstractmethod
    def raise_mark(self, mark: int) -> None:
        """Commit the mark (ms) of a purge, unless the table has a later one."""

    def time_before(self, older_than: timedelta) -> int:
        return _before(self._latest(), older_than)

    def purge_rows(self, older_than: timedelta, batch: int = PURGE_BATCH, *, dry_run: bool = False) -> int:
        _require_positive(older_than, batch)
        latest = self._latest()
        before, all_before = _before(latest, older_than), _before(latest, max(older_than, ROLLED_BACK_KEPT))
        if self.find_time(_BEGINNING, before, 0) is None:
            return 0
        if not dry_run:
            self.raise_mark(before + MARK_MARGIN)
        deleted = self._purge_range(_BEGINNING, all_before, None, batch, dry_run)
        return deleted + self._purge_range(all_before, before, ROLLED_BACK, batch, dry_run)

    def _latest(self) -> int:
        # A machine whose clock is ahead must not raise the mark above messages to come.
        newest, now = self.find_newest(), now_ms()
        return now if newest is None else min(newest, now)


def mark_of(time: int) -> str:
    """The state of PURGED_ROW: as many digits as it has room for, so that texts have the order of their times."""
    return f"{time:016}"


def require_least_age(older_than: timedelta) -> None:
    """Raise UsageError for an age of a barrier table that is too short."""
    if older_than < LEAST_AGE:
        raise UsageError(f"older_than must be an hour at least, not {older_than}: checks still ask for younger rows")


def _require_positive(older_than: timedelta, batch: int) -> None:
    if older_than <= timedelta(0) or batch < 1:
        raise UsageError(f"older_than and batch must be positive, not {older_than} and {batch}")


def _before(latest: int, older_than: timedelta) -> int:
    return max(_BEGINNING, latest - older_than // timedelta(milliseconds=1))
