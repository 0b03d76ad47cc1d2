"""Kafka in memory, as the clients of a bridge see it: whether it answers, its time, and the next failure."""

from __future__ import annotations

import threading
from enum import Enum

from txbridge.client.message import now_ms
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Headers
from txbridge.core.reply_record import Reply
from txbridge.testing.memory.partition import MemoryPartition


class CrashPoint(Enum):
    """A place in a send at which its process dies."""

    #: The half message is stored, and the local transaction is not run.
    PREPARED = "prepared"
    #: The local transaction is over, and its decision is not sent.
    EXECUTED = "executed"
    #: The decision is stored, and the caller never learns it.
    DECIDED = "decided"


class MemoryBroker:
    """Takes half messages and decisions; thread-safe, as listeners and pools of a service have threads of their own."""

    def __init__(self, policy: CheckPolicy) -> None:
        #: Use it under the lock.
        self.partition = MemoryPartition(policy)
        self.lock = threading.RLock()
        #: The time, in ms since 1970-01-01 UTC.
        self.now = now_ms()
        #: Whether Kafka answers.
        self.is_running = True
        #: Whether the next END is to be lost, and where the next process dies.
        self.is_to_lose = False
        self.crash_point: CrashPoint | None = None

    def store_half(self, key: bytes | None, value: bytes | None, headers: Headers) -> tuple[int, int]:
        """Store a half message. Returns its offset and its birth (ms)."""
        with self.lock:
            return self.partition.store_half(key, value, headers, self.now), self.now

    def store_decision(self, value: bytes, headers: Headers) -> None:
        """Store a record of END and apply it."""
        with self.lock:
            self.partition.store_decision(value, headers, self.now)
            # Checks are left to the calls that move the clock, which answer them.
            self.partition.run_turns(self.now, lambda _: False)

    def ask_worker(self, value: bytes, headers: Headers) -> Reply:
        """Store a record of END that asks for a reply. Returns the reply."""
        with self.lock:
            self.store_decision(value, headers)
            return self.partition.replies.pop()

    def take_loss(self) -> bool:
        """Whether the END that asks this is to be lost."""
        lost, self.is_to_lose = self.is_to_lose, False
        return lost

    def take_crash(self, point: CrashPoint) -> bool:
        """Whether the process that has reached this point dies."""
        if self.crash_point is not point:
            return False
        self.crash_point = None
        return True
