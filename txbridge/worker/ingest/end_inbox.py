"""END events of one partition on their way from Faust's event loop to the partition's thread, in order or not at all.

Faust may skip events, repeat them, and start wherever its own commit points: so an event is taken only when it is
exactly the next one. Any event above tells that something was missed; then the owner reads END until it is level.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from txbridge.core.names import Headers
from txbridge.kafka.environment import OUTSIDE, Outside

#: Events, and bytes of their values, that may wait. With more, the owner reads them itself when it has time: that is
#: the back-pressure.
CAPACITY = 2_000
CAPACITY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EndEvent:
    """A record of END as it came."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: When Kafka took it (ms), if that is known.
    appended: int | None = None


class EndInbox:
    """One writer thread (Faust's event loop), one reader thread (the owner).

    It is *level* when the next event that Faust offers will be the next one wanted. It starts not level, and whatever
    Faust offers is then only noted; once level, events are kept, until one does not fit.
    """

    def __init__(self, outside: Outside = OUTSIDE, capacity: int = CAPACITY) -> None:
        self._outside = outside
        self._capacity = capacity
        self._changed = threading.Condition()
        self._events: deque[EndEvent] = deque()
        self._bytes = 0
        self._expected = 0
        self._last_offered: int | None = None
        self._level = False
        self._woken = False

    def offer(self, event: EndEvent) -> None:
        """Take the event if it is the next one. Never blocks."""
        size = len(event.value or b"")
        with self._changed:
            self._last_offered = event.offset
            if not self._level or event.offset < self._expected:
                return
            fits = len(self._events) < self._capacity and self._bytes + size <= CAPACITY_BYTES
            if event.offset == self._expected and (fits or not self._events):
                self._events.append(event)
                self._bytes += size
                self._expected += 1
            else:
                self._level = False
            self._changed.notify()

    def try_level(self, expected: int) -> bool:
        """Listen again, if the last event offered was the one before `expected`: then nothing can be missed."""
        with self._changed:
            if self._last_offered == expected - 1:
                self._expected = expected
                self._level = True
            return self._level

    @property
    def offered(self) -> int:
        """END is known to reach this offset, because Faust has offered the one before it."""
        return 0 if self._last_offered is None else self._last_offered + 1

    def unlevel(self) -> None:
        """There is something in END that no event told about, or nobody listens any more."""
        with self._changed:
            self._level = False

    def clear(self) -> None:
        """Forget what was kept."""
        with self._changed:
            self._events.clear()
            self._bytes = 0
            self._level = False

    @property
    def must_read(self) -> bool:
        """Whether the owner must read END itself: not level, and nothing kept that comes first."""
        with self._changed:
            return not self._level and not self._events

    def wake(self) -> None:
        """Let `take` return early."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def take(self, limit: int, timeout: float) -> list[EndEvent]:
        """Up to `limit` events; waits at most `timeout` seconds for the first."""
        with self._changed:
            if not self._events and not self._woken and self._level and timeout > 0:
                self._outside.wait_for_change(self._changed, timeout)
            self._woken = False
            taken = [self._events.popleft() for _ in range(min(limit, len(self._events)))]
            self._bytes -= sum(len(event.value or b"") for event in taken)
            return taken
