"""Everything that a partition's owner needs from outside the program: Kafka's clients, the time, and chance.

One object, so that the simulator can put a simulated Kafka and a virtual clock in its place and still run every step of
the protocol as it is.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer

from txbridge.kafka.config import create


class Outside:
    """The real one. Thread-safe: it holds no state."""

    def producer(self, config: Mapping[str, Any]) -> Producer:
        """Raises UsageError when librdkafka refuses the settings."""
        return create(Producer, config)

    def consumer(self, config: Mapping[str, Any]) -> Consumer:
        """Raises UsageError when librdkafka refuses the settings."""
        return create(Consumer, config)

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def now(self) -> int:
        """Milliseconds since 1970, by this machine's clock."""
        return time.time_ns() // 1_000_000

    def shift(self) -> int:
        """Milliseconds by which what falls due is due earlier, whatever the clocks say. Only a test lets time pass."""
        return 0

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set, at most so long."""
        event.wait(seconds)

    def wait_for_change(self, condition: threading.Condition, seconds: float) -> None:
        """Wait until the condition, which the caller holds, is notified, at most so long."""
        condition.wait(seconds)

    def owner_name(self) -> str:
        """A name that no other take-over has."""
        return secrets.token_hex(8)

    def uniform(self, least: float, most: float) -> float:
        """A random number between the two."""
        return random.uniform(least, most)  # noqa: S311 - no secret


OUTSIDE = Outside()
