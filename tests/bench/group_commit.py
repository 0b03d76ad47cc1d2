"""The lower bound of decision to visible: bare records, committed in groups by one producer with one id."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from tests.bench.values import Values
from txbridge.kafka.config import transactional_producer_config

#: Kafka itself answers within milliseconds. A slower machine tells nothing.
_COMMIT_S = 30.0


class GroupCommits:
    """Group commits with our worker's settings: the next group gathers while one Kafka transaction is committed."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        config = transactional_producer_config(
            {"bootstrap.servers": bootstrap_servers},
            transactional_id=f"bare-{topic}",
            commit_timeout_ms=10_000,
            max_message_bytes=1024 * 1024,
        )
        self._producer = Producer(config)
        self._producer.init_transactions(_COMMIT_S)
        self._topic = topic
        #: Number of Kafka transactions of the last `send`.
        self.committed = 0

    def send(self, first: int, count: int, rate: float, size: int) -> list[float]:
        """Send records with these numbers as keys, `rate` a second. Returns the arrival time of each (monotonic, s).

        Arrivals are computed from the clock, which costs nothing. A thread that hands the records over would slow it
        down.
        """
        values = Values(size)
        since = time.monotonic()
        arrivals = [since + number / rate for number in range(count)]
        done = self.committed = 0
        while done < count:
            left = arrivals[done] - time.monotonic()
            now = time.monotonic()
            if left > 0:
                time.sleep(left)
                # A late wake-up on a busy machine is not Kafka's doing, and our own measurement does not count it
                # either.
                now = arrivals[done] = time.monotonic()
            self._producer.begin_transaction()
            while done < count and arrivals[done] <= now:
                self._producer.produce(self._topic, values[done], b"%d" % (first + done), partition=0)
                done += 1
            self._producer.commit_transaction(_COMMIT_S)
            self.committed += 1
        return arrivals

    def close(self) -> None:
        self._producer.close()
