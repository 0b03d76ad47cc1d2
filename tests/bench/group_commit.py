"""The lower bound of decision to visible: bare records, committed in groups by one producer with one id."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tests.bench.measure import Found, percentiles
from tests.bench.reader_process import ReaderProcess
from tests.bench.values import Values
from txbridge.kafka.config import transactional_producer_config

#: Kafka itself answers within milliseconds. A slower machine tells nothing.
_COMMIT_S = 30.0


@contextmanager
def group_commits(bootstrap_servers: str, topic: str) -> Iterator[Callable[[int, float, int], Found]]:
    """Group commits with our worker's settings: the next group gathers while one Kafka transaction is committed.

    Yields a function that measures `count` records, `rate` a second, with values of `size` bytes.
    """
    config = transactional_producer_config(
        {"bootstrap.servers": bootstrap_servers},
        transactional_id=f"bare-{topic}",
        commit_timeout_ms=10_000,
        max_message_bytes=1024 * 1024,
    )
    producer, first = Producer(config), 0
    producer.init_transactions(_COMMIT_S)

    def measure(count: int, rate: float, size: int) -> Found:
        nonlocal first
        reader.expect_numbers(first, count)
        arrivals = _send(producer, topic, first, count, rate, size)
        first += count
        return percentiles([at - since for since, at in zip(arrivals, reader.seen().times, strict=True)])

    with ReaderProcess(bootstrap_servers, topic) as reader:
        yield measure
    producer.close()


def _send(producer: Producer, topic: str, first: int, count: int, rate: float, size: int) -> list[float]:
    """Send records with these numbers as keys, and return the arrival time of each (monotonic, s).

    Arrivals are computed from the clock, which costs nothing. A thread that hands the records over would slow it down.
    """
    values = Values(size)
    since = time.monotonic()
    arrivals = [since + number / rate for number in range(count)]
    done = 0
    while done < count:
        left = arrivals[done] - time.monotonic()
        now = time.monotonic()
        if left > 0:
            time.sleep(left)
            # A late wake-up on a busy machine is not Kafka's doing, and our own measurement does not count it either.
            now = arrivals[done] = time.monotonic()
        producer.begin_transaction()
        while done < count and arrivals[done] <= now:
            producer.produce(topic, values[done], b"%d" % (first + done), partition=0)
            done += 1
        producer.commit_transaction(_COMMIT_S)
    return arrivals
