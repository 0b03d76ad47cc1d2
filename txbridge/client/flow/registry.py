"""What this process knows of its own transactions without asking the application."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict

from txbridge.core.end_record import Decision
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

#: Attempts given up that are remembered, the oldest forgotten first: 15 MB. 64 threads that each lose a message
#: every 3 s fill it in 78 minutes of an outage; a check of a forgotten one asks the application, which has no such
#: transaction.
MAX_GIVEN_UP = 100_000
#: While close() waits: too short for anybody to notice, and 200 looks a second cost nothing.
_LOOK_S = 0.005

#: Ids that are made at once: asking the system for random bits takes longer than all the rest.
_IDS = 256
_DIGITS = 32


class TransactionIds:
    """128 random bits as 32 digits each: nobody can guess one. Thread-safe, but the same after a fork."""

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new(self) -> str:
        """An id that nobody has had."""
        try:
            return self._ready.pop()
        except IndexError:
            digits = secrets.token_hex(_IDS * _DIGITS // 2).upper()
            first, *others = (digits[start : start + _DIGITS] for start in range(0, len(digits), _DIGITS))
            self._ready += others
            return first


class Attempts:
    """The attempts that run and those that were given up; thread-safe.

    An attempt runs while a lock is held that is its own: whoever is interrupted by a signal lets go of it without a
    step of ours that could be interrupted, too. What every attempt does is done without a common lock.
    """

    def __init__(self, max_given_up: int = MAX_GIVEN_UP) -> None:
        self._max_given_up = max_given_up
        self._lock = threading.Lock()
        self._running: dict[str, threading.Lock] = {}
        #: Those whose lock is let go of by `finish`.
        self._held: dict[str, threading.Lock] = {}
        self._given_up: OrderedDict[str, None] = OrderedDict()
        self._closed = False

    @property
    def running(self) -> int:
        """How many run now; those whose `finish` was interrupted are among them."""
        return len(self._running)

    def begin(self, transaction_id: str, running: threading.Lock | None = None) -> None:
        """An attempt runs from now on, as long as `running` is held by the caller; without it, until `finish`.

        UsageError after close.
        """
        if running is None:
            running = threading.Lock()
            self._held[transaction_id] = running
            running.acquire()
        self._running[transaction_id] = running
        # After it, as close() first closes and then looks who runs: one of the two sees the other.
        if self._closed:
            self.finish(transaction_id)
            raise UsageError("this producer is closed; create a new one")

    def give_up(self, transaction_id: str) -> None:
        """The half message was not acknowledged, though Kafka may have stored it: there is no local transaction."""
        with self._lock:
            self._given_up[transaction_id] = None
            if len(self._given_up) > self._max_given_up:
                self._given_up.popitem(last=False)

    def finish(self, transaction_id: str) -> None:
        """The attempt is over in this process: decided, given up, or never begun."""
        self._running.pop(transaction_id, None)
        held = self._held.pop(transaction_id, None)
        if held is not None and held.locked():
            held.release()

    def verdict(self, transaction_id: str) -> Decision | None:
        """The answer to a check that needs no application; None: ask it."""
        with self._lock:
            if transaction_id in self._given_up:
                return Decision.ROLLBACK
        running = self._running.get(transaction_id)
        return Decision.UNKNOWN if running is not None and running.locked() else None

    def close(self, timeout: float | None = None) -> int:
        """Allow no more attempts and wait for those that run (s, None: no limit). Returns how many still run."""
        self._closed = True
        deadline = Deadline(timeout)
        while left := sum(running.locked() for running in tuple(self._running.values())):
            if deadline.is_over:
                return left
            # Not told by those that end, which costs each of them something, but looked at: close() has the time.
            time.sleep(_LOOK_S)
        return 0
