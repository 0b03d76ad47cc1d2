"""A read_committed reader in a process of its own: `python -m tests.bench.reader SERVERS TOPIC`.

Each line of its input is a number of records to count; it answers "counting", and then when the last was seen.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import TopicPartition

from tests.bench.feed import PATIENCE_S, reader


def main() -> None:
    servers, topic = sys.argv[1:]
    consumer = reader(servers)
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    consumer.poll(1.0)
    print("ready", flush=True)
    for line in sys.stdin:
        left, deadline = int(line), time.monotonic() + PATIENCE_S
        print("counting", flush=True)
        while left > 0:
            assert time.monotonic() < deadline, f"{left:,} did not become visible"
            # One, and then all that are there: consume() alone waits for a full batch.
            first = consumer.poll(0.2)
            if first is not None:
                messages = [first, *consumer.consume(10_000, 0)]
                left -= sum(message.error() is None for message in messages)
        print(time.monotonic(), flush=True)
        assert left == 0, f"{-left:,} more became visible than were committed"
    consumer.close()


if __name__ == "__main__":
    main()
