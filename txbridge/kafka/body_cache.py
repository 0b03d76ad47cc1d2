"""Bodies of open half messages: in memory up to a budget, read back from HALF by offset beyond it."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress

from confluent_kafka import Message

from txbridge.core.checkpoint import Mark, digest
from txbridge.core.half_message import OBJECT_BYTES, HalfMessage, parse_half
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Headers, Names
from txbridge.kafka.errors import LogGoneError
from txbridge.kafka.headers import headers_of, offset_of
from txbridge.kafka.partition_reader import PartitionReader

#: Distance (offsets) up to which reading on reaches a wanted offset sooner than a new fetch position.
_READ_ON = 1_000
#: Most records that one poll takes. A call for each record would take as long as all other work.
_AT_ONCE = 1_000
#: The deque of bodies to drop first is cleaned when it is longer than twice the number of bodies, plus this.
_FEW = 1_024
#: Longest wait for one wanted record (s); a healthy broker answers in milliseconds.
_READ_TIMEOUT_S = 5.0


def to_half(message: Message, names: Names, headers: Headers | None = None) -> HalfMessage:
    """Parse a record of HALF. `headers` are its headers if they are known already. Raises MalformedRecordError."""
    born = message.timestamp()[1]
    headers = headers_of(message) if headers is None else headers
    return parse_half(offset_of(message), born, message.key(), message.value(), headers, names)


def mark_of(message: Message, names: Names, transaction_id: str | None = None) -> Mark:
    """The mark of a HALF or END record, which the checkpoint keeps.

    Pass `transaction_id` if it is known; it is empty for a malformed record. Headers that cannot be decoded must not be
    requested twice, because confluent-kafka then ends the process.
    """
    epoch: int | None = message.leader_epoch()
    epoch = None if epoch is None or epoch < 0 else epoch
    appended = message.timestamp()[1]
    if message.topic() != names.half:
        # The value of an END record names everything that it decides.
        return Mark(offset_of(message), digest(None, message.value()), epoch, appended)
    if transaction_id is None:
        transaction_id = ""
        with suppress(MalformedRecordError):
            transaction_id = to_half(message, names).transaction_id
    return Mark(offset_of(message), digest(message.key(), message.value(), transaction_id), epoch, appended)


class BodyCache:
    """Bodies by half offset. `budget` is in bytes, those of Python's objects included."""

    def __init__(self, budget: int, names: Names, reader: PartitionReader) -> None:
        self._budget = budget
        self._names = names
        self._reader = reader
        self._bodies: dict[int, HalfMessage] = {}
        #: Bodies to drop first when room is needed, oldest first. Some of these offsets are dropped already.
        self._yielding: deque[int] = deque()
        self.bytes = 0
        # Bytes of bodies that are kept elsewhere.
        self._reserved = 0

    def reserve(self, size: int) -> bool:
        """Set the bytes of the budget for bodies that are kept elsewhere. False when there is no room for them."""
        while self.bytes + size > self._budget and self._yielding:
            self.drop([self._yielding.popleft()])
        has_room = self.bytes + size <= self._budget
        if has_room:
            self._reserved = size
        return has_room

    def put(self, half: HalfMessage) -> None:
        """Keep a body unless the budget is used up. A body that is not kept is read back when it is needed."""
        size = half.size + OBJECT_BYTES
        if half.offset in self._bodies or size > self._budget:
            return
        most = self._budget - self._reserved - size
        while self.bytes > most and self._yielding:
            self.drop([self._yielding.popleft()])
        if self.bytes <= most:
            self._bodies[half.offset] = half
            self.bytes += size

    def yield_room(self, offsets: Iterable[int]) -> None:
        """Let the bodies of these parked messages make room for others.

        Otherwise messages that are never decided would fill the budget. Each new message, which is usually decided at
        once, would then have to be read back on its own.
        """
        self._yielding += (offset for offset in offsets if offset in self._bodies)
        if len(self._yielding) > 2 * len(self._bodies) + _FEW:
            self._yielding = deque(offset for offset in self._yielding if offset in self._bodies)

    def drop(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            half = self._bodies.pop(offset, None)
            if half is not None:
                self.bytes -= half.size + OBJECT_BYTES

    def load(self, offsets: Iterable[int]) -> dict[int, HalfMessage]:
        """Bodies of these half messages; one that is missing in the answer is gone from HALF.

        Bodies that are not in memory are read in the order of offsets, and not kept. Raises TimeoutError, LogGoneError,
        KafkaException.
        """
        bodies: dict[int, HalfMessage] = {}
        missing: list[int] = []
        for offset in offsets:
            half = self._bodies.get(offset)
            if half is None:
                missing.append(offset)
            else:
                bodies[offset] = half
        if missing:
            for message in self.read_back(missing):
                # A parked entry that names another record was forged. There is nothing to deliver, as if it were gone.
                with suppress(MalformedRecordError):
                    bodies[offset_of(message)] = to_half(message, self._names)
        return bodies

    def read_back(self, offsets: Iterable[int]) -> Iterator[Message]:
        """These records of HALF, in the order of their offsets; those that retention has deleted are left out."""
        return read_back(self._reader, offsets)


def read_back(reader: PartitionReader, offsets: Iterable[int]) -> Iterator[Message]:
    """These records, in the order of their offsets; those that retention has deleted are left out.

    Raises TimeoutError, KafkaException, and LogGoneError when the log ends before them.
    """
    low, _ = reader.watermarks()
    reader.position = -1
    wanted = sorted(offset for offset in offsets if offset >= low)
    at = until = 0
    while at < len(wanted):
        offset = wanted[at]
        if not 0 <= reader.position <= offset <= reader.position + _READ_ON:
            reader.start(offset)
        # The last offset to reach by reading on: each wanted one is near the one before.
        until = max(until, at)
        while until + 1 < len(wanted) and wanted[until + 1] <= wanted[until] + 1 + _READ_ON:
            until += 1
        try:
            messages = reader.poll(min(wanted[until] + 1 - reader.position, _AT_ONCE), _READ_TIMEOUT_S)
        except LogGoneError:
            # Retention has just deleted the record; or the log ends here, according to the broker that was asked.
            reader.position = -1
            low, _ = reader.watermarks()
            if low <= offset:
                raise
            at = bisect_left(wanted, low, at)
            continue
        if not messages and reader.position <= offset:
            raise TimeoutError(f"offset {offset} of {reader.topic}[{reader.partition}] did not come back")
        for message in messages:
            at = bisect_left(wanted, offset_of(message), at)
            if at < len(wanted) and wanted[at] == message.offset():
                yield message
        # Wanted records that were passed and did not come are gone.
        at = bisect_left(wanted, reader.position, at)
    reader.stop()
