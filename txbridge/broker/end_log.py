"""END of one partition, in order and without gaps: from Faust's events while they are level, else read by ourselves."""

from __future__ import annotations

import time
from collections import deque

from txbridge.broker.inbox import EndEvent, EndInbox
from txbridge.broker.payloads import headers_of, offset_of
from txbridge.broker.takeover import PartitionState
from txbridge.broker.writer import MalformedRecord
from txbridge.core.end_transaction import EndRecord, parse_end
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names

#: Records of END that may wait for their transaction: enough for several batches, little enough to hold in memory.
_WAITING = 2_000
#: How often the end of END is compared with what the events told: Faust may have skipped the last one, after which
#: nothing would wake us.
_COMPARE_EVERY_S = 1.0


class EndLog:
    """What of END is read and waits to be applied, in `waiting`; the cycle takes it from the left."""

    def __init__(self, names: Names, state: PartitionState, inbox: EndInbox) -> None:
        self.waiting: deque[EndRecord | MalformedRecord] = deque()
        self._topic = names.end
        self._partition = state.partition
        self._reader = state.end_reader
        self._inbox = inbox
        self._next = state.queue.next_end
        self._reading = False
        self._compared = 0.0
        # What was decided while nobody owned the partition came with no event.
        inbox.clear()

    def fill(self, timeout: float) -> None:
        """Take what is there; waits at most `timeout` seconds when nothing waits already. Raises KafkaException."""
        room = _WAITING - len(self.waiting)
        if room <= 0:
            return
        if self.waiting:
            timeout = 0.0
        if self._inbox.must_read:
            self._read(room, timeout)
            return
        for event in self._inbox.take(room, timeout):
            self._add(event)
        if time.monotonic() - self._compared > _COMPARE_EVERY_S:
            self._compared = time.monotonic()
            if not self.waiting and self._reader.watermarks()[1] > self._next:
                self._inbox.unlevel()

    def _read(self, room: int, timeout: float) -> None:
        """Read END ourselves until Faust's events are level with us; without them this is how END is read."""
        if not self._reading:
            self._reader.start(self._next)
            self._reading = True
        for message in self._reader.poll(room, timeout):
            self._add(EndEvent(offset_of(message), message.key(), message.value(), headers_of(message)))
        self._next = max(self._next, self._reader.position)
        if self._inbox.try_level(self._next):
            self._reader.stop()
            self._reading = False

    def _add(self, event: EndEvent) -> None:
        self._next = event.offset + 1
        try:
            self.waiting.append(parse_end(event.offset, event.value, event.headers))
        except MalformedRecordError as error:
            self.waiting.append(
                MalformedRecord(
                    topic=self._topic,
                    partition=self._partition,
                    offset=event.offset,
                    key=event.key,
                    value=event.value,
                    headers=event.headers,
                    error=str(error),
                ),
            )
