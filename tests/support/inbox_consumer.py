"""A run of examples/shop/billing.py that kills itself at a given point of a given record.

    python -m tests.support.inbox_consumer URL SERVERS TOPIC POINT COUNT

It sends itself SIGKILL when the COUNTth record of this run, or the first later one, reaches the given point. The points
are `polled`, the `insert` into the inbox, the `function`, the `commit`, `committed`, and `stored` (its offset is stored
and committed). With `never` it is not killed. It prints `begun` at its first record, and `end` when it has worked on
all records.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from confluent_kafka import Consumer, KafkaError
from sqlalchemy import create_engine, event
from txbridge_sqlalchemy import Inbox

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "shop"))
import billing

POINTS = ("polled", "insert", "function", "commit", "committed", "stored")
PARTITIONS = 2


class Deadly:
    """Kills the process when its point is reached the given number of times."""

    def __init__(self, point: str, count: int) -> None:
        self._point, self._count, self._number = point, count, 0

    def polled(self) -> None:
        self._number += 1
        self.reach("polled")

    def reach(self, point: str) -> None:
        if point == self._point and self._number >= self._count:
            os.kill(os.getpid(), signal.SIGKILL)


class Watched:
    """A consumer that reports where the loop is."""

    def __init__(self, consumer: Consumer, deadly: Deadly) -> None:
        self._consumer, self._deadly = consumer, deadly
        self._ended = set()
        self._has_begun = False

    def poll(self, timeout):
        record = self._consumer.poll(timeout)
        if record is None:
            return None
        if record.error() is not None and record.error().code() == KafkaError._PARTITION_EOF:
            self._ended.add(record.partition())
            if len(self._ended) == PARTITIONS:
                print("end", flush=True)
            return None
        if not self._has_begun:
            self._has_begun = True
            print("begun", flush=True)
        self._deadly.polled()
        return record

    def store_offsets(self, record):
        self._deadly.reach("committed")
        self._consumer.store_offsets(record)
        if self._deadly._point == "stored" and self._deadly._number >= self._deadly._count:
            self._consumer.commit(asynchronous=False)
            self._deadly.reach("stored")

    def close(self):
        self._consumer.close()


def main() -> None:
    url, servers, topic, point, count = sys.argv[1:]
    deadly = Deadly(point, int(count))
    engine = create_engine(url)
    inbox = Inbox(engine, "billing")
    # The probe has a row of its own and comes before any kill: it is no step of a record.
    inbox.verify()

    def before(_connection, _cursor, statement, *_):
        if "INSERT INTO txbridge_inbox" in statement:
            deadly.reach("insert")

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "commit", lambda _connection: deadly.reach("commit"))
    bill = billing.bill

    def watched(connection, record):
        bill(connection, record)
        deadly.reach("function")

    billing.WORK = {topic: watched}
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            # The new process replaces the killed one at once, without waiting for the end of its session.
            "group.instance.id": topic,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    billing.consume(Watched(consumer, deadly), inbox, lambda: False)


if __name__ == "__main__":
    main()
