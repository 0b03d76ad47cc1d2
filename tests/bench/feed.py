"""Tools that measurements share: transactions made without a client, and readers of a worker's results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.bench.values import Values
from tests.support.harness import COMMIT, Bridge, eventually
from txbridge.core.message_frames import FramedMessage, encode_frames

#: Limit of each wait. A slower machine tells nothing about txbridge.
PATIENCE_S = 600.0
#: Number of entries that a client puts into one END record under load.
_ENTRIES = 200
#: Greatest number of entries that a worker puts into one Kafka transaction (worker/turn/commit_loop.py).
MOST_ENTRIES = 10_000
_GROUPS = ("group",)


def say(text: str) -> None:
    """Print the progress of long work to stderr, beside the report."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Feed:
    """Writes half messages and decisions of partition 0 with a plain producer, as fast as possible."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._producer = Producer(
            {
                "bootstrap.servers": bridge.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def prepare(
        self,
        real_topic: str | Sequence[str],
        count: int,
        size: int,
        mark: bytes,
        messages: int | None = None,
        groups: Sequence[str] = _GROUPS,
    ) -> list[tuple[int, str]]:
        """Prepare half messages and return their offsets and ids in the order of production.

        Each may hold several messages. Topics and groups take turns.
        """
        topics = [real_topic] if isinstance(real_topic, str) else real_topic
        values = Values(size)
        found: list[tuple[int, str]] = []
        for number in range(count):
            topic, group = topics[number % len(topics)], groups[number % len(groups)]
            headers, value = [("mark", mark), *self._bridge.half_headers(topic, group)], values[number]
            if messages is not None:
                one = FramedMessage(topic, None, value, [("mark", mark)])
                headers, value = [*headers[1:], ("TXB_MESSAGES", b"%d" % messages)], encode_frames([one] * messages)
            self.produce(value, headers, found)
            if number % 1_000 == 0:
                self._producer.poll(0)
            if number and number % 200_000 == 0:
                say(f"  {number:,}")
        self.flush()
        return found

    def produce(self, value: bytes, headers: Sequence[tuple[str, bytes]], found: list[tuple[int, str]]) -> None:
        """Hand over one half message. Its offset and id are appended to `found` when it is acknowledged."""
        transaction_id = dict(headers)["UNIQ_KEY"].decode()

        def report(error: object, message: Message) -> None:
            assert error is None, error
            found.append((message.offset() or 0, transaction_id))

        while True:
            try:
                self._producer.produce(
                    self._bridge.names.half, value=value, headers=[*headers], partition=0, on_delivery=report
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def flush(self) -> None:
        """Wait until Kafka has everything."""
        assert self._producer.flush(PATIENCE_S) == 0

    def commit(self, prepared: Sequence[tuple[int, str]], groups: Sequence[str] = _GROUPS) -> None:
        """Commit all of them in their order, with END records for each group. Returns when Kafka has the records."""
        self._decide([end_values(prepared[number :: len(groups)]) for number in range(len(groups))], groups)

    def decide(self, prepared: Sequence[tuple[int, str]], decision: Callable[[int], int]) -> None:
        """Decide all of them in their order with END records. The decision depends on the position in the list."""
        self._decide([end_values(prepared, decision)], _GROUPS)

    def _decide(self, values: Sequence[Iterator[bytes]], groups: Sequence[str]) -> None:
        headers = [self._bridge.end_headers(group) for group in groups]
        for of_each in zip_longest(*values):
            for its_headers, value in zip(headers, of_each, strict=True):
                if value is not None:
                    self._producer.produce(self._bridge.names.end, value=value, headers=its_headers, partition=0)
            self._producer.poll(0)
        self.flush()


def end_values(prepared: Sequence[tuple[int, str]], decision: Callable[[int], int] | None = None) -> Iterator[bytes]:
    """Values of END records for these half messages, by offset and id. They commit unless `decision` is given."""
    for start in range(0, len(prepared), _ENTRIES):
        yield "\n".join(
            f"{offset},{name},{COMMIT if decision is None else decision(number)}"
            for number, (offset, name) in enumerate(prepared[start : start + _ENTRIES], start)
        ).encode()


class LastCheckpoint:
    """The position of the last checkpoint of partition 0 in HALF (the low watermark) and in END."""

    def __init__(self, bridge: Bridge) -> None:
        self._consumer = reader(bridge.bootstrap_servers)
        self._consumer.assign([TopicPartition(bridge.names.offset, 0, 0)])
        self._key = bridge.names.checkpoint_key(0)
        self._last = {"half": 0, "end": 0}

    def wait(self, log: str, position: int) -> None:
        """Wait until the worker has passed this position of HALF ("half") or END ("end")."""
        eventually(lambda: self._read()[log] >= position, PATIENCE_S, f"position {position} of {log} was not passed")

    def _read(self) -> dict[str, int]:
        for message in self._consumer.consume(100_000, 1.0):
            if message.error() is None and message.key() == self._key:
                self._last = json.loads(message.value() or b"{}")
        return self._last

    def close(self) -> None:
        self._consumer.close()


def reader(servers: str) -> Consumer:
    """A reader of committed records, with nothing assigned yet."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )


def memory(pid: int, field: str = "VmRSS") -> int:
    """Resident memory of a process (bytes), or its peak (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process has ended")
