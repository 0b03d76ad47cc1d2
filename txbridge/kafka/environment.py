"""Everything that a partition's owner needs from outside the program: Kafka's clients, the time, and random numbers.

It is one object, so that the simulator can replace it by a simulated Kafka and a virtual clock, and still run every
step of the protocol unchanged.
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
    """The real environment. Thread-safe: it holds no state."""

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
        """Milliseconds to add to the time of the clocks, so that messages fall due earlier. Only tests use it."""
        return 0

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set, at most `seconds`."""
        event.wait(seconds)

    def wait_for_change(self, condition: threading.Condition, seconds: float) -> None:
        """Wait until the condition, which the caller holds, is notified, at most `seconds`."""
        condition.wait(seconds)

    def owner_name(self) -> str:
        """A name that no other take-over has."""
        return secrets.token_hex(8)

    def uniform(self, least: float, most: float) -> float:
        """A random number between the two."""
        return random.uniform(least, most)  # noqa: S311 - no secret


OUTSIDE = Outside()
