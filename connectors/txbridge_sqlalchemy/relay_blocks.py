"""Rows that a relay leaves out because they cannot be sent: single ones, keys of a topic, or whole topics. No clock.

A row that cannot be sent waits alone, at the head of its block. Later rows of its key and topic do not pass it, all
others do. The head is sent by itself after a pause that doubles; once Kafka has taken it, or it is gone, the block is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from txbridge.backoff import Backoff
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_messages import OutboxRow

#: Pause (s) between two attempts to send a head: the first, and the longest. Who has repaired a row or a topic sees it
#: go within a minute.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: Pause (s) before rows that wait for a worker are tried again.
_STORED_S = 1.0
#: Most heads, which a statement can name in every database. With more it is not some rows that are wrong but the
#: description of the table, or the application that writes them.
MOST_HEADS = 10_000


class Scope(Enum):
    """What waits behind a head."""

    #: Nothing: it has no key.
    ROW = auto()
    #: Later rows of its topic with its key.
    KEY = auto()
    #: All rows of its topic, which takes none now.
    TOPIC = auto()


@dataclass(slots=True)
class Head:
    """The first row of a block, and why it cannot be sent."""

    row: OutboxRow
    scope: Scope
    reason: str
    #: Monotonic time (s) of the next attempt.
    due: float
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))


class Excluded(NamedTuple):
    """What statements leave out. Empty if there is nothing."""

    topics: list[str]
    keys: list[tuple[str, Any]]
    ids: list[Any]
    #: 1: rows that wait for a worker, and others of their keys, too.
    stored: int


class Blocks:
    """The blocks of one outbox."""

    def __init__(self) -> None:
        self._heads: dict[Any, Head] = {}
        #: Monotonic time (s) until which rows that wait for a worker are left out; 0 if they are not.
        self._stored_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._heads) or self._stored_until > 0

    def __iter__(self) -> Iterator[Head]:
        return iter(tuple(self._heads.values()))

    @staticmethod
    def _of(row: OutboxRow, scope: Scope) -> Any:
        return row.topic if scope is Scope.TOPIC else (row.topic, row.key) if scope is Scope.KEY else (row.id,)

    def block_row(self, row: OutboxRow, reason: str, now: float, *, whole_topic: bool = False) -> Head | None:
        """Block what waits behind this row. Returns the head if it is a new one.

        Raises UsageError if so many rows cannot be sent that the outbox stands still.
        """
        scope = Scope.TOPIC if whole_topic else Scope.ROW if row.key is None or row.topic is None else Scope.KEY
        which = self._of(row, scope)
        head = self._heads.get(which)
        if head is not None:
            head.reason = reason
            return None
        if len(self._heads) >= MOST_HEADS:
            raise UsageError(
                f"more than {MOST_HEADS} rows cannot be sent: correct the description of the table or the application "
                "that writes them, then repair or delete these rows"
            )
        head = self._heads[which] = Head(row, scope, reason, 0.0)
        self.postpone_head(head, now)
        return head

    def lift_block(self, head: Head) -> None:
        """Let go what waits behind this head."""
        self._heads.pop(self._of(head.row, head.scope), None)

    def postpone_head(self, head: Head, now: float) -> None:
        """Wait for the next attempt to send this head."""
        head.due = now + head.backoff.next()

    def hold_stored(self, now: float) -> None:
        """Leave out rows that wait for a worker, and others of their keys, for some time."""
        self._stored_until = now + _STORED_S

    def release_stored(self, now: float) -> bool:
        """Let go rows that wait for a worker, if it is time to try them again. Returns whether there may be any."""
        is_time = 0 < self._stored_until <= now
        if is_time:
            self._stored_until = 0.0
        return is_time

    def list_due(self, now: float) -> list[Head]:
        """Heads that are to be sent again. Those of a topic that takes nothing wait for its own one."""
        due = [head for head in self._heads.values() if head.due <= now]
        return [head for head in due if head.scope is Scope.TOPIC or head.row.topic not in self._heads]

    def without_blocked(self, rows: Iterable[OutboxRow]) -> list[OutboxRow]:
        """The rows that are in no block."""
        if not self:
            return list(rows)
        free = [row for row in rows if not any(self._of(row, scope) in self._heads for scope in Scope)]
        if not self._stored_until:
            return free
        held = {(row.topic, row.key) for row in free if row.after is not None and row.key is not None}
        return [row for row in free if row.after is None and (row.topic, row.key) not in held]

    @property
    def excluded(self) -> Excluded:
        """What statements leave out."""
        found = Excluded([], [], [], int(self._stored_until > 0))
        for head in self._heads.values():
            if head.scope is Scope.TOPIC:
                found.topics.append(str(head.row.topic))
            elif head.scope is Scope.KEY:
                found.keys.append((str(head.row.topic), head.row.key))
            else:
                found.ids.append(head.row.id)
        return found
