"""TransactionSize: limits of a partition's Kafka transactions, which fall after a time-out and rise slowly."""

from __future__ import annotations

from dataclasses import dataclass

#: Divisor of the size after a time-out. A link that carried a part of the transaction in time carries that.
_SHRINK = 4
#: Growth of the limits after a full transaction in time. Twenty of them, a fifth of a second on a healthy cluster, lead
#: from one message back to the largest.
_GROW = 1.5
#: The same for one that took longer than _QUICK_S. The next one is to stay well below the produce time-out (5 s), which
#: a transaction that is too large costs.
_GROW_CAREFULLY = 1.1
_QUICK_S = 1.0
_LONG_S = 2.5
#: A transaction of this size or less was slow for another reason, unless the link carries less than 25 KB/s.
_SMALL_BYTES = 64 * 1024
_SMALL_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one Kafka transaction. A message that is larger goes alone."""

    #: END entries. 10,000 messages of 1 KB take about 0.2 s, well within transaction.timeout.ms.
    entries: int = 10_000
    #: Bytes of messages. More makes readers of the real topics wait without making the worker faster.
    bytes: int = 16 * 1024 * 1024


class TransactionSize:
    """The limits of the next Kafka transaction, which follow from the results of the last ones."""

    def __init__(self, largest: Limits) -> None:
        self._largest = self.limits = largest
        self._time_outs = 0

    @property
    def is_shrunk(self) -> bool:
        """Whether the limits are reduced, because a transaction timed out recently."""
        return self.limits != self._largest

    @property
    def is_smallest(self) -> bool:
        """Whether the next one holds a single message."""
        return self.limits.entries == 1

    def got_through(self, entries: int, size: int, seconds: float) -> None:
        """Note that a transaction of this size was committed after so many seconds."""
        self._time_outs = 0
        if not self.is_shrunk:
            return
        limits, largest = self.limits, self._largest
        if seconds < _QUICK_S or (size <= _SMALL_BYTES and entries <= _SMALL_ENTRIES):
            factor = _GROW
        elif seconds < _LONG_S:
            factor = _GROW_CAREFULLY
        else:
            return
        self.limits = Limits(
            _grown(limits.entries, entries, largest.entries, factor), _grown(limits.bytes, size, largest.bytes, factor)
        )

    def timed_out(self, entries: int, size: int, *, in_part: bool) -> None:
        """Note that a transaction was not committed in time. `in_part`: Kafka took some of its messages.

        Twice in a row, or with nothing taken, leads down to one message. If even that times out, the size is not the
        reason.
        """
        self._time_outs += 1
        if not in_part or self._time_outs > 1:
            self.limits = Limits(1, 1)
            return
        limits = self.limits
        self.limits = Limits(
            max(1, min(limits.entries, entries) // _SHRINK), max(1, min(limits.bytes, size) // _SHRINK)
        )


def _grown(limit: int, held: int, largest: int, factor: float) -> int:
    """The new limit. It does not grow after a transaction that was less than half full, which proves nothing."""
    if 2 * held < limit:
        return limit
    return min(largest, max(limit + 1, int(max(limit, held) * factor)))
