"""Memory of half messages: outcomes of the last finished ones, and ids, so that a copy in HALF is known.

Outcomes answer late decisions and cancellations. A copy is the same half message twice, sent twice by its producer.

Kafka's idempotence does not cover every failure. A broker that comes back may refuse one batch in flight and take the
next. Then librdkafka (as the Java client since KIP-360) begins a new epoch, and sends all messages again that are not
acknowledged. Those that the old epoch had stored by then are in the log twice, within a moment. The client knows only
one of the two. The worker would check the other. The application looks transactions up by their id, so it would commit
both. So the transaction id decides: the first record is the half message. The later one is a copy of it, and goes to
the discard topic.

An END may name the copy. It may come long after both: after a long local transaction, or when much of END waits to be
applied. So a copy is known as long as its first record is open, however old both are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from txbridge.core.states import Outcome

#: Longest `message.timeout.ms` of a client: for this time it may go on sending a half message. It is enough for a
#: broker's restart (10 to 20 s). Every second of it costs the worker memory.
LONGEST_MESSAGE_TIMEOUT_MS = 30_000
#: A request that was sent at the last moment may still wait at a broker that stands still. And append times may go back
#: a little when another broker becomes the leader.
_MARGIN_MS = 30_000
#: A copy is recognised if the append times of both records lie within this many ms.
WINDOW_MS = LONGEST_MESSAGE_TIMEOUT_MS + _MARGIN_MS
#: At least this many messages are kept, whatever their age, in case the clock of a broker jumps.
AT_LEAST = 10_000
#: Most half messages that a take-over reads again, to know the copies of those that are still open. It takes a process
#: some seconds. An open message with an older copy is decided by a check if its END names the copy.
_READ_AGAIN = 500_000
#: A table spans this part of the window. It is dropped as a whole, so the window is at most that part longer than it
#: must be.
_SLICES = 4
#: Least and greatest capacity of one table, in messages.
_FEW, _MANY = 4_096, 2**19
_ID_BYTES = 16
#: An index entry is a row number and, above it, bits of the hash, so that few ids need to be compared.
_ROW_BITS = 20
_ROW_MASK = 2**_ROW_BITS - 1
_TAG_BITS = 32 - _ROW_BITS


class _Table:
    """Ids of consecutive half messages: 16 bytes for the id, 8 for the offset, and an index of 16 to 32 bytes each."""

    __slots__ = ("capacity", "copies", "ends", "firsts", "ids", "index", "mask", "offsets", "start", "until")

    def __init__(self, capacity: int, start: int, born: int, ends: int) -> None:
        self.capacity = capacity
        self.ids = bytearray()
        self.offsets: array[int] = array("q")
        #: Open addressing, at most a quarter full; 0 is an empty slot.
        self.index: array[int] = array("I", bytes(16 * capacity))
        self.mask = 4 * capacity - 1
        #: Offset of the first message, the greatest append time, and the time at which the next table begins.
        self.start, self.until, self.ends = start, born, ends
        #: Offsets of the copies that came meanwhile, in their order, and of the first record of each.
        self.copies, self.firsts = array("q"), array("q")

    def find(self, key: bytes, hashed: int) -> int | None:
        """Offset of the message with this id."""
        index, mask, tag = self.index, self.mask, hashed >> _ROW_BITS & (1 << _TAG_BITS) - 1
        slot = hashed & mask
        while found := index[slot]:
            row = found & _ROW_MASK
            if found >> _ROW_BITS == tag and self.ids[(row - 1) * _ID_BYTES : row * _ID_BYTES] == key:
                offset: int = self.offsets[row - 1]
                return offset
            slot = slot + 1 & mask
        return None

    def add(self, keys: Sequence[bytes], hashes: Sequence[int], start: int) -> None:
        """Add ids that are not in the table, with offsets from `start` on."""
        index, mask, row = self.index, self.mask, len(self.offsets)
        self.ids += b"".join(keys)
        self.offsets.extend(range(start, start + len(keys)))
        for hashed in hashes:
            row += 1
            slot = hashed & mask
            while index[slot]:
                slot = slot + 1 & mask
            index[slot] = row | (hashed >> _ROW_BITS & (1 << _TAG_BITS) - 1) << _ROW_BITS


class DeduplicationWindow:
    """Transaction ids of the last half messages of a partition."""

    def __init__(
        self, window: int = WINDOW_MS, at_least: int = AT_LEAST, is_open: Callable[[int], bool] = lambda _offset: False
    ) -> None:
        """`is_open` tells whether the half message at an offset may still be decided."""
        self._window, self._at_least, self._is_open = window, at_least, is_open
        self._tables: deque[_Table] = deque()
        # The index of each table, which is looked at before any call. For nearly every message the slot is empty.
        self._probes: list[tuple[_Table, array[int], int]] = []
        self._has_copies = False
        # Copies whose first record is open and older than the tables: offset of the copy -> offset of the first record.
        self._outlived: dict[int, int] = {}

    def note_id(self, offset: int, transaction_id: str, born: int) -> int | None:
        """Take in the next valid record of HALF. Returns the offset of the first record with its id if it is a copy."""
        table = self._table_for(offset, born)
        key = bytes.fromhex(transaction_id)
        hashed = hash(key)
        for one, index, mask in self._probes:
            if index[hashed & mask]:
                first = one.find(key, hashed)
                if first is not None and first != offset:
                    table.copies.append(offset)
                    table.firsts.append(first)
                    self._has_copies = True
                    return first
        table.add((key,), (hashed,), offset)
        return None

    def note_all(self, start: int, ids: Sequence[bytes], births: Sequence[int]) -> bool:
        """Take in valid records with consecutive offsets and different ids. Ids are as in the headers.

        False if a copy is among them; then none was taken in.
        """
        joined = bytes.fromhex(b"".join(ids).decode())
        keys = [joined[place : place + _ID_BYTES] for place in range(0, len(joined), _ID_BYTES)]
        hashes = list(map(hash, keys))
        for table, index, mask in self._probes:
            for number in [number for number, hashed in enumerate(hashes) if index[hashed & mask]]:
                if table.find(keys[number], hashes[number]) is not None:
                    return False
        done = 0
        while done < len(keys):
            table = self._table_for(start + done, births[done])
            stop = min(len(keys), done + table.capacity - len(table.offsets))
            if max(births[done:stop]) >= table.ends:
                stop = next(number for number in range(done, stop) if births[number] >= table.ends)
            table.until = max(table.until, *births[done:stop])
            table.add(keys[done:stop], hashes[done:stop], start + done)
            done = stop
        return True

    def find_id(self, transaction_id: str) -> int | None:
        """Offset of the half message with this id, if it is among the last ones."""
        key = bytes.fromhex(transaction_id)
        found = (table.find(key, hash(key)) for table in self._tables)
        return next((offset for offset in found if offset is not None), None)

    def id_at(self, offset: int) -> str | None:
        """Id of the half message at this offset, if it is among the last ones."""
        for table in self._tables:
            row = bisect_left(table.offsets, offset)
            if row < len(table.offsets) and table.offsets[row] == offset:
                return table.ids[row * _ID_BYTES : (row + 1) * _ID_BYTES].hex().upper()
        return None

    def _table_for(self, offset: int, born: int) -> _Table:
        """The table that this message belongs to."""
        table = self._tables[-1] if self._tables else None
        if table is None or born >= table.ends or len(table.offsets) == table.capacity:
            return self._next_table(offset, born)
        table.until = max(table.until, born)
        return table

    def _next_table(self, offset: int, born: int) -> _Table:
        """Drop the tables that are too old, and append a table that begins with this message."""
        tables, capacity = self._tables, _FEW
        if tables:
            last = tables[-1]
            # Room for as many messages as the last table has, so that there are few tables and none is nearly empty.
            wanted = len(last.offsets)
            if wanted == last.capacity:
                wanted *= 2
            while capacity < min(_MANY, wanted):
                capacity *= 2
            self._forget(max(born, *(table.until for table in tables)))
        tables.append(_Table(capacity, offset, born, born + self._window // _SLICES))
        self._probes = [(table, table.index, table.mask) for table in tables]
        return tables[-1]

    def _forget(self, newest: int) -> None:
        tables = self._tables
        count = sum(len(table.offsets) for table in tables)
        while len(tables) > 1 and newest - tables[0].until > self._window:
            count -= len(tables[0].offsets)
            if count < self._at_least:
                break
            gone = tables.popleft()
            self._outlived.update(zip(gone.copies, gone.firsts, strict=True))
        oldest = tables[0].start
        for table in tables:
            # A take-over that reads from the oldest table on does not see the first records. It would take these copies
            # for half messages.
            self._outlived.update(pair for pair in zip(table.copies, table.firsts, strict=True) if pair[1] < oldest)
        self._outlived = {copy: first for copy, first in self._outlived.items() if self._is_open(first)}
        self._has_copies = bool(self._outlived) or any(table.copies for table in tables)

    def first_of(self, offset: int) -> int:
        """Offset of the half message that this offset means: for a copy, that of the first record."""
        if self._has_copies:
            for table in self._tables:
                place = bisect_left(table.copies, offset)
                if place < len(table.copies) and table.copies[place] == offset:
                    return table.firsts[place]
            return self._outlived.get(offset, offset)
        return offset

    @property
    def start(self) -> int | None:
        """Offset from which a take-over has to read to know the same copies; None if there are no messages."""
        if not self._tables:
            return None
        newest = self._tables[-1]
        least = newest.start + len(newest.offsets) - _READ_AGAIN
        return min([self._tables[0].start, *(first for first in self._outlived.values() if first >= least)])


#: Places, a power of two: one megabyte of every partition. A second decision about a message mostly comes within
#: seconds of the first.
PLACES = 2**16
#: Messages whose id is remembered, some 200 bytes each: those of some seconds at least.
_MOST_IDS = 10_000


class Finished(NamedTuple):
    """How a message was finished."""

    outcome: Outcome
    #: Its producer group; None until a take-over has read the half message.
    group: str | None = None


class Remembered:
    """The last outcomes that this process saw. The messages whose offsets differ by PLACES share a place."""

    def __init__(self) -> None:
        self._mask = PLACES - 1
        self._offsets = array("q", [-1]) * PLACES
        self._outcomes: list[Finished | None] = [None] * PLACES

    def note_outcome(self, offset: int, outcome: Finished) -> None:
        # A discarded message that was resumed is finished twice. The last outcome counts.
        place = offset & self._mask
        self._offsets[place], self._outcomes[place] = offset, outcome

    def get(self, offset: int) -> Finished | None:
        place = offset & self._mask
        return self._outcomes[place] if self._offsets[place] == offset else None


class KnownId(NamedTuple):
    """A transaction that was found by its id."""

    offset: int
    #: None: open, or not known.
    finished: Finished | None = None
    #: Of an abandoned one: number of messages that were delivered before. None: not known.
    delivered: int | None = None


class RememberedIds:
    """Ids and outcomes of the last finished messages that had been scheduled or held.

    A cancellation that comes too late names an id that may be days old. `dedup` knows the ids of a minute.
    """

    def __init__(self) -> None:
        self._found: dict[str, KnownId] = {}

    def note_finished(self, transaction_id: str, known: KnownId) -> None:
        self._found[transaction_id] = known
        if len(self._found) > _MOST_IDS:
            del self._found[next(iter(self._found))]

    def find_id(self, transaction_id: str) -> KnownId | None:
        return self._found.get(transaction_id)
