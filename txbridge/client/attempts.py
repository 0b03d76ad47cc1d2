"""What this process knows of its own transactions without asking the application."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from txbridge.core.end_transaction import Decision
from txbridge.errors import UsageError

#: Attempts given up that are remembered, the oldest forgotten first: 15 MB. 64 threads that each lose a message
#: every 3 s fill it in 78 minutes of an outage; a check of a forgotten one asks the application, which has no such
#: transaction.
MAX_GIVEN_UP = 100_000


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

    What every attempt does is done without the lock: to add to a set, or to discard from it, is one step.
    """

    def __init__(self, max_given_up: int = MAX_GIVEN_UP) -> None:
        self._max_given_up = max_given_up
        self._condition = threading.Condition()
        self._running: set[str] = set()
        self._given_up: OrderedDict[str, None] = OrderedDict()
        self._closed = False

    @property
    def running(self) -> int:
        """How many run now."""
        return len(self._running)

    def begin(self, transaction_id: str) -> None:
        """An attempt runs from now on. UsageError after close."""
        self._running.add(transaction_id)
        # After it, as close() first closes and then looks who runs: one of the two sees the other.
        if self._closed:
            self.finish(transaction_id)
            raise UsageError("this producer is closed; create a new one")

    def give_up(self, transaction_id: str) -> None:
        """The half message was not acknowledged, though Kafka may have stored it: there is no local transaction."""
        with self._condition:
            self._given_up[transaction_id] = None
            if len(self._given_up) > self._max_given_up:
                self._given_up.popitem(last=False)

    def finish(self, transaction_id: str) -> None:
        """The attempt is over in this process: decided, given up, or never begun."""
        self._running.discard(transaction_id)
        if self._closed and not self._running:
            with self._condition:
                self._condition.notify_all()

    def verdict(self, transaction_id: str) -> Decision | None:
        """The answer to a check that needs no application; None: ask it."""
        with self._condition:
            if transaction_id in self._given_up:
                return Decision.ROLLBACK
            return Decision.UNKNOWN if transaction_id in self._running else None

    def close(self, timeout: float | None = None) -> int:
        """Allow no more attempts and wait for those that run (s, None: no limit). Returns how many still run."""
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: not self._running, timeout)
            return len(self._running)
