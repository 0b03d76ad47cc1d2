"""Attempts of this process: those that run, the limit for them, and turns on an event loop.

With them the process answers some checks without the application.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque

from txbridge.client.errors import closed
from txbridge.core.decision_record import Decision
from txbridge.deadline import Deadline

#: Pause (s) until a send without room looks again: as long as Kafka takes for an answer, which makes room. One send
#: looks at a time, the others wait behind it. A notification would cost every report and every decision something.
PAUSE_S = 0.002
#: Most attempts in flight. At 50,000 transactions a second these are the attempts of 40 ms. More would be slower: each
#: takes about 4 KB beside its message, ten thousand do not fit into a processor's caches, and each cost a third more.
MAX_NUMBER = 2_000
#: Most bytes of messages, so that large messages do not add up to gigabytes. At 10,000 a second of 1 KB, that is 6 s.
MAX_BYTES = 64 * 1024 * 1024
#: Most attempts given up that are remembered, which take 15 MB. The oldest is forgotten first. If 64 threads each lose
#: a message every 3 s, they reach this limit after 78 minutes of an outage. A check of a forgotten attempt asks the
#: application, which has no such transaction.
MAX_GIVEN_UP = 100_000
#: Interval (s) at which close() looks for running attempts. Nobody notices it, and 200 looks a second cost nothing.
_LOOK_S = 0.005
#: A lock that nobody holds.
_OVER = threading.Lock()


class Attempts:
    """Attempts that run, and attempts that were given up; thread-safe.

    The attempt of a caller that waits for it runs while a lock of its own is held. If a signal interrupts the caller,
    it releases the lock without a step of ours that a signal could interrupt, too. Others run until `finish_attempt`.
    The steps of every attempt need no common lock.
    """

    def __init__(self, max_given_up: int = MAX_GIVEN_UP) -> None:
        self._max_given_up = max_given_up
        self._lock = threading.Lock()
        #: By transaction id, with the lock of a caller that waits.
        self._running: dict[str, threading.Lock | None] = {}
        #: Those that have a half message and no decision.
        self._stored: set[str] = set()
        self._given_up: OrderedDict[str, None] = OrderedDict()
        self._closed = False

    @property
    def running(self) -> int:
        """Number of attempts that run, including those whose `finish_attempt` was interrupted."""
        return len(self._running)

    @property
    def local(self) -> int:
        """Number of attempts whose local transactions run."""
        return len(self._stored)

    def note_stored(self, transaction_id: str) -> None:
        """Note that the half message of an attempt is stored. Its local transaction comes next."""
        self._stored.add(transaction_id)

    def begin_attempt(self, transaction_id: str, running: threading.Lock | None = None) -> None:
        """Begin an attempt. It runs while the caller holds `running`, or without that until `finish_attempt`.

        Raises UsageError after close.
        """
        self._running[transaction_id] = running
        # Only now, because close() first closes and then looks for running attempts. So one of the two sees the other.
        if self._closed:
            self.finish_attempt(transaction_id)
            raise closed()

    def give_up(self, transaction_id: str) -> None:
        """Note that there is no local transaction. Kafka may have stored the half message without acknowledging it."""
        with self._lock:
            self._given_up[transaction_id] = None
            if len(self._given_up) > self._max_given_up:
                self._given_up.popitem(last=False)

    def finish_attempt(self, transaction_id: str) -> None:
        """End an attempt in this process. It is decided, given up, or never begun."""
        self._running.pop(transaction_id, None)
        self._stored.discard(transaction_id)

    def verdict_of(self, transaction_id: str) -> Decision | None:
        """Return the answer to a check that needs no application. None: ask the application."""
        with self._lock:
            if transaction_id in self._given_up:
                return Decision.ROLLBACK
        running = self._running.get(transaction_id, _OVER)
        return Decision.UNKNOWN if running is None or running.locked() else None

    def close(self, timeout: float | None = None) -> int:
        """Allow no more attempts, and wait up to `timeout` seconds (None: no limit). Returns how many still run."""
        self._closed = True
        deadline = Deadline(timeout)
        while left := sum(running is None or running.locked() for running in tuple(self._running.values())):
            if deadline.is_over:
                return left
            # A poll, because a notification would cost every attempt something, and close() has the time.
            time.sleep(_LOOK_S)
        return 0


class InFlight:
    """Attempts from their call to their decision: pure bookkeeping. Not thread-safe."""

    def __init__(self, max_number: int = MAX_NUMBER, max_bytes: int = MAX_BYTES) -> None:
        self._max_number, self._max_bytes = max_number, max_bytes
        self.number = 0
        self._bytes = 0
        #: True from the limit down to half of it. So callers that wait wake to room for many, not for one each.
        self.is_full = False
        #: Attempts between two marks share an epoch, so that a mark costs nothing for each of them.
        self._epoch = 0
        self._left: dict[int, int] = {}

    def add_attempt(self, size: int) -> int:
        """Add an attempt of `size` bytes. Returns its epoch."""
        left = self._left.get(self._epoch, 0) + 1
        # No calls from here on. A signal interrupts only at calls, so either all of this is counted or nothing.
        self.number += 1
        self._bytes += size
        if self.number >= self._max_number or self._bytes >= self._max_bytes:
            self.is_full = True
        self._left[self._epoch] = left
        return self._epoch

    def remove_attempt(self, epoch: int, size: int) -> bool:
        """Remove an attempt. Returns whether callers that wait for room or for a mark should look again."""
        self.number -= 1
        self._bytes -= size
        left = self._left[epoch] = self._left[epoch] - 1
        if not left:
            del self._left[epoch]
        if self.is_full and 2 * self.number <= self._max_number and 2 * self._bytes <= self._max_bytes:
            self.is_full = False
            return True
        return not left

    @property
    def room(self) -> int:
        """Number of attempts that may be added now."""
        return 0 if self.is_full else self._max_number - self.number

    def set_mark(self) -> int:
        """Return a mark of everything added so far, for `left_of`."""
        self._epoch += 1
        return self._epoch - 1

    def left_of(self, mark: int) -> int:
        """Return how many of the attempts added before the mark are not over."""
        return sum(left for epoch, left in self._left.items() if epoch <= mark)


class Turns(InFlight):
    """Turns of sends, no more than there is room for. They belong to one loop."""

    def __init__(self, max_number: int = MAX_NUMBER, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_number, max_bytes)
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Number of waiting sends whose turn has come, and that have not taken it yet.
        self._called = 0
        self._closed = False

    async def take_turn(self, size: int, *, waits: bool) -> int:
        """Take a turn for `size` bytes, and wait for it if `waits`. Returns the epoch for `give_back`."""
        while waits and self.is_full and not self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    # Its turn had come, and is another send's now.
                    self._called -= 1
                    self._call_waiting()
                raise
            self._called -= 1
        return self.add_attempt(size)

    def give_back(self, epoch: int, size: int) -> None:
        """Give a turn back, with the epoch from `take_turn` and its size."""
        self.remove_attempt(epoch, size)
        self._call_waiting()

    def close(self) -> None:
        """End all waits for a turn. Later sends do not wait."""
        self._closed = True
        self._call_waiting()

    def _call_waiting(self) -> None:
        while self._waiting and (self._closed or self._called < self.room):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._called += 1
