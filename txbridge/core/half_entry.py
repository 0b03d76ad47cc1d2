"""HalfEntry: an open half message, and its parked entry in OFFSET."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Self

from txbridge.core import names
from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import MalformedRecordError
from txbridge.core.json_fields import dump, load, number, short, text
from txbridge.core.states import TransactionState

_OPEN_STATES = {state.value: state for state in TransactionState if state.is_open}
#: Fields that the parked entry of a scheduled message must have.
_NEEDED = {TransactionState.SCHEDULED: ("deliver", "decided")}
#: Number of fields that all parked entries have.
_FIELDS_OF_ALL = 9
#: The largest number in a column of four bytes (`parked_table`).
_MOST = 2**32 - 1


class _EntryFields(NamedTuple):
    offset: int
    transaction_id: str
    group: str
    real_topic: str
    born: int
    size: int
    #: Due time (ms) of the next check, of the (next attempt at) delivery, or of the removal of a discarded entry.
    next_due: int
    state: TransactionState = TransactionState.PENDING
    checks: int = 0
    #: Whether OFFSET has a parked entry for it.
    parked: bool = False
    #: Of a held or scheduled one: END offset of its decision.
    decided: int | None = None
    #: Reason for which it cannot be delivered or could not be checked, and number of attempts so far.
    error: str | None = None
    attempts: int = 0
    #: Of a discarded one: the reason, and partition and offset in the discard topic.
    reason: str | None = None
    discarded_at: tuple[int, int] | None = None
    #: Time (ms) of its resume, from which its age counts.
    resumed: int | None = None
    #: Number of messages that it holds.
    messages: int = 1
    #: Before this time (ms) it must not be delivered. If its messages name different times: time of the next ones to be
    #: delivered, None if these name none.
    deliver_at: int | None = None
    #: If its messages name different times: number of those delivered so far, in the order of times.
    delivered: int | None = None


class HalfEntry(_EntryFields):
    """One open half message: pending, held, scheduled, or discarded and resumable. Its body is elsewhere (BodyCache).

    It cannot be changed. Many are made from a row on each look-up, and a change of such an entry would be lost. A new
    entry takes the place of the old one (`OpenMessages.put_entry`). A tuple is made as quickly as an object with slots.
    """

    __slots__ = ()

    @classmethod
    def of_half(cls, half: HalfMessage, next_due: int) -> Self:
        """The entry of a half message about which nothing is known yet."""
        # By position: naming the arguments takes three times as long.
        entry = cls(half.offset, half.transaction_id, half.group, half.real_topic, half.born, half.size, next_due)
        if half.messages is not None:
            entry = entry._replace(messages=half.messages, delivered=None if half.last_time is None else 0)
        return entry if half.deliver_at is None else entry._replace(deliver_at=half.deliver_at)

    @property
    def since(self) -> int:
        """The time from which its age counts (ms)."""
        return self.born if self.resumed is None else self.resumed

    @property
    def topics(self) -> tuple[str, ...]:
        """Its real topics."""
        return names.topics_of(self.real_topic)

    @property
    def is_timed(self) -> bool:
        """Whether its messages name different times, so that it may be delivered in steps."""
        return self.delivered is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is pending or scheduled, parked and nothing else, and so fits into a row of a ParkedTable.

        Id, size and number of checks always fit if a worker has read the message in HALF, unless the limits were
        raised.
        """
        return (
            (self.state is TransactionState.PENDING or self._waits_for_its_time)
            and self.parked
            and self.resumed is None
            and self.error is None
            and self.size <= _MOST
            and self.checks <= _MOST
            and names.is_transaction_id(self.transaction_id)
        )

    @property
    def _waits_for_its_time(self) -> bool:
        return (
            self.state is TransactionState.SCHEDULED and self.next_due == self.deliver_at and self.decided is not None
        )

    def encode(self, end: int) -> bytes:
        """Its parked entry in OFFSET. `end`, the END position at which it is written, is for people."""
        data: dict[str, Any] = {
            "state": self.state.value,
            "id": self.transaction_id,
            "group": self.group,
            "topic": self.real_topic,
            "born": self.born,
            "size": self.size,
            "checks": self.checks,
            "next": self.next_due,
            "end": end,
        }
        if self.deliver_at is not None:
            data["deliver"] = self.deliver_at
        if self.state.is_committed:
            data |= {"decision": 8, "decided": self.decided}
        if self.state is TransactionState.DISCARDED:
            data |= {"reason": self.reason, "at": self.discarded_at}
        if self.error is not None:
            data["error"] = self.error
        if self.resumed is not None:
            data["resumed"] = self.resumed
        if self.messages != 1:
            data["messages"] = self.messages
        if self.delivered is not None:
            data["delivered"] = self.delivered
        return dump(data)

    @classmethod
    def decode(cls, offset: int, value: bytes) -> HalfEntry:
        """The entry that a parked entry of OFFSET describes. Raises MalformedRecordError."""
        data = load(value)
        try:
            state = _OPEN_STATES[data["state"]]
            # Positional arguments are faster: a take-over reads a million entries.
            entry = cls(
                offset,
                _which(data["id"], names.is_transaction_id),
                _group(data["group"]),
                _topic(data["topic"]),
                number(data["born"]),
                number(data["size"]),
                number(data["next"]),
                state,
                number(data["checks"]),
                True,
            )
            number(data["end"])
            for name in _NEEDED.get(state, ()):
                number(data[name])
            if len(data) == _FIELDS_OF_ALL:
                return entry
            return entry._replace(
                decided=None if data.get("decided") is None else number(data["decided"]),
                error=None if data.get("error") is None else text(data["error"]),
                reason=None if data.get("reason") is None else text(data["reason"]),
                discarded_at=None if data.get("at") is None else _coordinates(data["at"]),
                resumed=None if data.get("resumed") is None else number(data["resumed"]),
                messages=number(data.get("messages", 1)),
                deliver_at=None if data.get("deliver") is None else number(data["deliver"]),
                delivered=None if data.get("delivered") is None else number(data["delivered"]),
            )
        except (KeyError, TypeError) as error:
            raise MalformedRecordError(f"not a parked entry: {short(error)}") from None


def _which(value: Any, is_one: Callable[[str], bool]) -> str:
    """The name, which must be valid: it was when it came with the half message."""
    if not isinstance(value, str) or not is_one(value):
        raise TypeError(f"not a name: {value!r:.40}")
    return value


@lru_cache(1_024)
def _group(value: Any) -> str:
    """A producer group, as one object for all messages that name it: a million messages share a few."""
    return sys.intern(_which(value, names.is_group))


@lru_cache(1_024)
def _topic(value: Any) -> str:
    """A real topic, or several in one text, likewise as one object."""
    return sys.intern(_which(value, lambda text: all(map(names.is_topic, names.topics_of(text)))))


def _coordinates(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError(f"not coordinates: {value!r:.40}")
    return number(value[0]), number(value[1])
