"""How much one Kafka transaction of a partition may hold: less after a time-out, slowly more again. Asks no clock."""

from __future__ import annotations

from dataclasses import dataclass

#: Of what timed out, so much is tried next: a link that carried a part of it in the time carries that.
_SHRINK = 4
#: A full transaction in time lets the next hold half as much again. Twenty of them, a fifth of a second on a healthy
#: cluster, lead from one message back to the largest.
_GROW = 1.5
#: The same for one that took longer than _QUICK_S: the next is to stay well below the produce time-out (5 s), which is
#: what a transaction that is too large costs.
_GROW_CAREFULLY = 1.1
_QUICK_S = 1.0
_LONG_S = 2.5
#: What is no larger was slow for another reason than its size, unless the link carries less than 25 KB/s.
_SMALL_BYTES = 64 * 1024
_SMALL_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one Kafka transaction. One message that is larger goes alone."""

    #: END entries. 10,000 messages of 1 KB take about 0.2 s, well within transaction.timeout.ms.
    entries: int = 10_000
    #: Bytes of messages. More makes readers of the real topics wait without making the worker faster.
    bytes: int = 16 * 1024 * 1024


class TransactionSize:
    """The limits of the next Kafka transaction, from what became of the last ones."""

    def __init__(self, largest: Limits) -> None:
        self._largest = self.limits = largest
        self._time_outs = 0

    @property
    def is_shrunk(self) -> bool:
        """Whether a transaction has timed out of late."""
        return self.limits != self._largest

    @property
    def is_smallest(self) -> bool:
        """Whether the next one holds a single message."""
        return self.limits.entries == 1

    def got_through(self, entries: int, size: int, seconds: float) -> None:
        """A transaction of so many entries and bytes was committed after so many seconds."""
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
            _grown(limits.entries, entries, largest.entries, factor),
            _grown(limits.bytes, size, largest.bytes, factor),
        )

    def timed_out(self, entries: int, size: int, *, in_part: bool) -> None:
        """A transaction did not get through in time; `in_part`: Kafka took some of its messages.

        Twice in a row, or with nothing taken, leads down to one message: what does not take that is not too slow.
        """
        self._time_outs += 1
        if not in_part or self._time_outs > 1:
            self.limits = Limits(1, 1)
            return
        limits = self.limits
        self.limits = Limits(
            max(1, min(limits.entries, entries) // _SHRINK),
            max(1, min(limits.bytes, size) // _SHRINK),
        )


def _grown(limit: int, held: int, largest: int, factor: float) -> int:
    """One that was half empty proves nothing."""
    if 2 * held < limit:
        return limit
    return min(largest, max(limit + 1, int(max(limit, held) * factor)))
