"""A read_committed reader in a process of its own: `python -m tests.bench.reader SERVERS TOPIC...`.

Each line of its input is a JSON object with the `count` of records to see. It answers "counting", and then with its
results. With `first`, keys are numbers, from this one on. The answer has the time when each was seen, and the number of
copies until `settle` seconds after all were seen. With `until`, values begin with a time in ms and a blank. The answer
has these times and the times when the records were seen, both in ms. It comes after so many records, or after the first
one that names no time (0).
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer, Message, TopicPartition

from tests.bench.feed import PATIENCE_S, reader


def main() -> None:
    servers, *topics = sys.argv[1:]
    consumer = reader(servers)
    consumer.assign(
        [
            TopicPartition(topic, partition, 0)
            for topic in topics
            for partition in consumer.list_topics(topic, 10).topics[topic].partitions
        ]
    )
    consumer.poll(1.0)
    _answer("ready")
    for line in sys.stdin:
        wanted = json.loads(line)
        _answer("counting")
        if "first" in wanted:
            _answer(_times(consumer, wanted["first"], wanted["count"], wanted["settle"]))
        elif "until" in wanted:
            _answer(_named_times(consumer, wanted["until"]))
        else:
            _answer({"last": _last(consumer, wanted["count"])})
    consumer.close()


def _answer(what: object) -> None:
    print(json.dumps(what), flush=True)


def _last(consumer: Consumer, count: int) -> float:
    left, deadline = count, time.monotonic() + PATIENCE_S
    while left > 0:
        assert time.monotonic() < deadline, f"{left:,} did not become visible"
        left -= len(_records(consumer))
    assert left == 0, f"{-left:,} more became visible than were committed"
    return time.monotonic()


def _times(consumer: Consumer, first: int, count: int, settle: float) -> dict[str, object]:
    seen: dict[int, float] = {}
    copies, deadline = 0, time.monotonic() + PATIENCE_S
    until = deadline
    while time.monotonic() < until:
        records = _records(consumer)
        now = time.monotonic()
        for number in (int(message.key() or b"") for message in records):
            # A copy of a record of an earlier measurement counts as one, too.
            if number < first or number in seen:
                copies += 1
            else:
                seen[number] = now
        if len(seen) == count:
            until = min(until, now + settle)
    assert len(seen) == count, f"{count - len(seen):,} did not become visible"
    return {"times": [seen[first + number] for number in range(count)], "copies": copies}


def _named_times(consumer: Consumer, count: int) -> dict[str, list[float]]:
    named: list[float] = []
    seen: list[float] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(named) < count:
        assert time.monotonic() < deadline, f"{count - len(named):,} did not become visible"
        records = _records(consumer)
        now = round(time.time() * 1e3, 1)
        found = [int((message.value() or b"0").split(b" ", 1)[0]) for message in records]
        if 0 in found:
            found = found[: found.index(0)]
            count = len(named) + len(found)
        named += found
        seen += [now] * len(found)
    return {"named": named, "seen": seen}


def _records(consumer: Consumer) -> list[Message]:
    """All available records, after a wait for the first one: consume() alone waits for a full batch."""
    first = consumer.poll(0.1)
    if first is None:
        return []
    return [message for message in [first, *consumer.consume(10_000, 0)] if message.error() is None]


if __name__ == "__main__":
    main()
