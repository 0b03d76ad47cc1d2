"""Attempts of this process. With them it answers some checks without the application."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict

from txbridge.client.errors import closed
from txbridge.core.decision_record import Decision
from txbridge.deadline import Deadline

#: Most attempts given up that are remembered, which take 15 MB. The oldest is forgotten first. If 64 threads each lose
#: a message every 3 s, they reach this limit after 78 minutes of an outage. A check of a forgotten attempt asks the
#: application, which has no such transaction.
MAX_GIVEN_UP = 100_000
#: Interval (s) at which close() looks for running attempts. Nobody notices it, and 200 looks a second cost nothing.
_LOOK_S = 0.005
#: A lock that nobody holds.
_OVER = threading.Lock()

#: Number of ids that are made at once, because asking the system for random bits takes longer than all the rest.
_IDS = 256
_DIGITS = 32


class TransactionIds:
    """Ids of 128 random bits as 32 digits, which nobody can guess. Thread-safe, but the same after a fork."""

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new_id(self) -> str:
        """Return an id that no transaction has had."""
        try:
            return self._ready.pop()
        except IndexError:
            digits = secrets.token_hex(_IDS * _DIGITS // 2).upper()
            first, *others = (digits[start : start + _DIGITS] for start in range(0, len(digits), _DIGITS))
            self._ready += others
            return first


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
