"""Copies: the same half message twice in HALF, because its producer has sent it twice.

Kafka's idempotence does not outlive everything. When a broker comes back and refuses one batch that is in flight but
takes the next, librdkafka (as the Java client since KIP-360) begins a new epoch and sends all that is not acknowledged
again: what the old epoch had stored by then stands there twice, within a moment. The client knows only one of the two,
the worker would check the other, and the application, which looks transactions up by their id, would commit both.
So the transaction id decides: the first record is the half message, the later one is a copy of it and set aside.
"""

from __future__ import annotations

from collections import deque

#: Of so many half messages, and bytes of them, a copy is recognised: the last ones that were read. Seconds of a busy
#: partition, where a copy follows within the time-outs of one request; a take-over has to read them again (0.2 s), and
#: they take 3 MB.
_RECORDS = 10_000
_BYTES = 16 * 1024 * 1024


class RecentHalves:
    """Transaction ids of the last half messages of a partition."""

    def __init__(self, records: int = _RECORDS, size: int = _BYTES) -> None:
        self._limits = records, size
        self._order: deque[tuple[int, int, str]] = deque()
        self._bytes = 0
        self._first: dict[str, int] = {}
        self._copies: dict[int, int] = {}

    def note(self, offset: int, transaction_id: str, size: int) -> int | None:
        """Take in the next valid record of HALF. The offset of the first one with its id, when it is a copy."""
        first = self._first.setdefault(transaction_id, offset)
        self._order.append((offset, size, transaction_id))
        self._bytes += size
        if first != offset:
            self._copies[offset] = first
        records, most_bytes = self._limits
        while len(self._order) > records or (self._bytes > most_bytes and len(self._order) > 1):
            self._forget()
        return None if first == offset else first

    def _forget(self) -> None:
        offset, size, transaction_id = self._order.popleft()
        self._bytes -= size
        self._copies.pop(offset, None)
        if self._first.get(transaction_id) == offset:
            del self._first[transaction_id]

    def first_of(self, offset: int) -> int:
        """The half message that is meant by this offset: that of a copy is the first one's."""
        return self._copies.get(offset, offset)

    @property
    def start(self) -> int | None:
        """Offset of the oldest one; who reads from there knows the same copies."""
        return self._order[0][0] if self._order else None
