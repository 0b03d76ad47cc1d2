"""The gate of an outbox: the place up to which it may be read, so that no row is overtaken by one with a higher id.

On PostgreSQL. An INSERT locks the table (RowExclusiveLock) before it draws an id, and its transaction or savepoint
keeps that lock until its rows are visible, or dropped. A relay looks at the newest row and at who has the lock, in one
statement. That reads the locks while it runs, which is after the moment as of which it sees rows. Ids grow.

A writer that a look does not find has ended by then, or takes the lock later. In the first case its rows are visible to
each statement that begins later. In the second it draws ids above that newest row. So a writer that was not there at
the look before only adds rows after the newest one of that look, and of all earlier ones. Up to this place of the
writer that came first, a statement that begins after the look sees each row that there will ever be.

A writer is named by its virtual transaction id, which is not used again, and which a prepared transaction keeps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class OutboxGate:
    """Opens up to a row when all transactions have ended that could still add one before it."""

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
