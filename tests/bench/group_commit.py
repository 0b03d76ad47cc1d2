"""The floor of decision to visible: bare records, committed in groups by one producer with one transactional id."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from tests.bench.values import Values
from txbridge.kafka.config import transactional_producer_config

#: Kafka's own answer comes in milliseconds; a machine that needs longer tells nothing.
_COMMIT_S = 30.0


class GroupCommits:
    """While one Kafka transaction is being committed, the next group gathers. With the settings of our worker."""

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
        #: Kafka transactions of the last `send`.
        self.committed = 0

    def send(self, first: int, count: int, rate: float, size: int) -> list[float]:
        """Records with these numbers as keys, `rate` a second; returns when each of them arrived (monotonic, s).

        They arrive by the clock, which costs nothing: a thread that hands them over would make it slower.
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
                # Woken late by a busy machine: not Kafka's doing, and no part of our own decisions either.
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
