"""Reasons why a topic takes no records. librdkafka hides the broker's answer, and only reports a time-out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.client.base.process import join
from txbridge.client.kafka.connection import create_admin
from txbridge.kafka.controller_requests import ControllerRequests

#: Time-out (s) of each of the two requests of a look, with all attempts. A running broker answers in milliseconds.
#: close() may wait for the requests.
_REQUEST_S = 1.5
#: Least time (s) between two looks.
_EVERY_S = 2.0
#: Seconds for which a look is valid. If acknowledgements are still missing, the next look has been made by then.
_FRESH_S = 6.0
#: Most partitions that the text of an error names.
_SHOWN = 5


class Shortage:
    """Looks at a topic in a thread of its own, when acknowledgements are late; thread-safe."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, factory: Callable[[dict[str, Any]], Any] = AdminClient
    ) -> None:
        self._topic = topic
        self._requests = ControllerRequests(lambda: create_admin(settings, factory))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._reason, self._until = "", 0.0

    @property
    def reason(self) -> str:
        """Problems of the topic and what to do, if a recent look has found any; else empty."""
        return self._reason if time.monotonic() < self._until else ""

    def look_soon(self) -> None:
        """Start a look, unless one was made a moment ago. Returns at once."""
        now = time.monotonic()
        if now < self._next:
            return
        with self._lock:
            if now < self._next or (self._thread is not None and self._thread.is_alive()):
                return
            self._next = now + _EVERY_S
            self._thread = threading.Thread(target=self._look_at_topic, name="txbridge-half-look", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Start no more looks, and wait for one that runs."""
        self._next = float("inf")
        with self._lock:
            thread = self._thread
        if thread is not None:
            join(thread)

    def _look_at_topic(self) -> None:
        # Without an answer there is no reason to add. The text of the error already names the connection.
        with suppress(KafkaException, TimeoutError):
            topics = self._requests.describe_topics([self._topic], _REQUEST_S)
            config = self._requests.describe_configs([self._topic], _REQUEST_S)[self._topic]
            partitions = topics[self._topic].result().partitions
            wanted = int(config.result()["min.insync.replicas"].value)
            self._reason = "; ".join(_wrong(partitions, wanted))
            self._until = time.monotonic() + _FRESH_S


def _wrong(partitions: list[Any], wanted: int) -> Iterator[str]:
    leaderless = [one.id for one in partitions if one.leader is None]
    if leaderless:
        yield f"{_named(leaderless)} without a leader: bring the brokers back"
    # Kafka never demands more replicas than the partition has.
    short = [one for one in partitions if one.leader is not None and len(one.isr) < min(wanted, len(one.replicas))]
    if short:
        fewest = min(len(one.isr) for one in short)
        where = _named([one.id for one in short])
        yield (
            f"too few replicas are in sync (NOT_ENOUGH_REPLICAS): {fewest} where min.insync.replicas asks for "
            f"{wanted}, in {where}: bring the brokers back"
        )


def _named(partitions: list[int]) -> str:
    shown = ", ".join(str(partition) for partition in partitions[:_SHOWN])
    more = f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else ""
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}{more}"
