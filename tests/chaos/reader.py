"""A read_committed reader that watches from the first record on, through all outages, and notes when it saw each."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Message, TopicPartition

from tests.support.harness import quiet


@dataclass(frozen=True, slots=True)
class Sighting:
    """A sighting of one record of a real topic."""

    transaction_id: str
    #: Partition and offset of its half message.
    half: str
    partition: int
    offset: int
    #: Time of the reader's time.monotonic().
    seen: float
    topic: str = ""
    #: Number of this message in its transaction, and the number of messages.
    number: int = 1
    of: int = 1
    #: Time when the broker stored it, if its topic has that timestamp (ms).
    stored: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


class WatchingReader:
    """Sightings in the order in which they came."""

    def __init__(self, servers: str, topics: Sequence[str], partitions: int) -> None:
        self.sightings: list[Sighting] = []
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                **quiet(servers),
                "group.id": "chaos-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # The measured pause must not be this reader's own back-off.
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, partition, 0) for topic in topics for partition in range(partitions)]
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(5_000, 0.1):
                if message.error() is None:
                    self.sightings.append(sighting(message, time.monotonic()))
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(120)

    def longest_pause(self, since: float) -> float:
        """The longest time (s) from `since` on in which no new record of some half partition became visible."""
        times: dict[str, list[float]] = {}
        for one in list(self.sightings):
            if one.seen > since:
                times.setdefault(one.half.partition(":")[0], [since]).append(one.seen)
        return max(
            (after - before for each in times.values() for before, after in itertools.pairwise(each)), default=0.0
        )


def sighting(message: Message, seen: float) -> Sighting:
    headers = dict(message.headers() or ())
    name, half = headers["UNIQ_KEY"], headers["TXB_HALF"]
    partition, offset = message.partition(), message.offset()
    assert isinstance(name, bytes)
    assert isinstance(half, bytes)
    assert partition is not None
    assert offset is not None
    number, _, of = (headers.get("TXB_MESSAGE") or b"1/1").decode().partition("/")
    kind, at = message.timestamp()
    return Sighting(
        name.decode(),
        half.decode(),
        partition,
        offset,
        seen,
        topic=message.topic() or "",
        number=int(number),
        of=int(of),
        stored=at if kind == TIMESTAMP_LOG_APPEND_TIME else None,
    )
