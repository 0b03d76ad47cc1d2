"""A polled relay as people write it: `python polled_relay.py CONNINFO SERVERS HOW POLL_MS`.

Rows are locked, sent, flushed and deleted in one transaction of the database. HOW is `poll`; `notify`, which waits for
a NOTIFY instead of the time; or `transactions`, which sends the rows of one round in a Kafka transaction. That one is
committed before the rows are deleted: a relay that dies between the two sends the rows again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

import psycopg
from confluent_kafka import KafkaError, Producer

#: Rows of one round.
_ROWS = 1_000
_READ = f"SELECT id, topic, key, payload FROM outbox ORDER BY id LIMIT {_ROWS} FOR UPDATE SKIP LOCKED"
_KAFKA_S = 30.0
#: Without statistics PostgreSQL would sort all rows that wait for each round, which takes five times as long.
_PLAN = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off"


def main() -> None:
    conninfo, servers, how, poll_ms = sys.argv[1:]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    settings: dict[str, object] = {"bootstrap.servers": servers, "enable.idempotence": True}
    if how == "transactions":
        settings["transactional.id"] = "relay"
    producer = Producer(settings)
    send = _send
    if how == "transactions":
        producer.init_transactions(_KAFKA_S)
        send = _send_in_a_transaction
    with psycopg.connect(conninfo) as connection, psycopg.connect(conninfo, autocommit=True) as listening:
        # Not by `options`, which may have the schema.
        connection.execute(_PLAN)
        connection.commit()
        if how == "notify":
            listening.execute("LISTEN outbox")
        print("ready", flush=True)
        while not ended.is_set():
            since = time.monotonic()
            if _relay(connection, producer, send) == _ROWS:
                continue
            if how == "notify":
                # The time-out covers a NOTIFY that came before LISTEN, and lets a signal end the relay.
                list(listening.notifies(timeout=0.5, stop_after=1))
            else:
                ended.wait(max(0.0, since + int(poll_ms) / 1e3 - time.monotonic()))


_Row = tuple[int, str, str, str]


def _relay(connection: psycopg.Connection, producer: Producer, send: Callable[[Producer, Sequence[_Row]], None]) -> int:
    """Relay the oldest rows, and return their number."""
    with connection.transaction():
        rows: list[_Row] = connection.execute(_READ).fetchall()
        if rows:
            send(producer, rows)
            connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in rows],))
    return len(rows)


def _send(producer: Producer, rows: Sequence[_Row]) -> None:
    errors: list[KafkaError | None] = []
    for _, topic, key, payload in rows:
        producer.produce(topic, payload, key, on_delivery=lambda error, _: errors.append(error))
    producer.flush(_KAFKA_S)
    assert errors == [None] * len(rows), errors


def _send_in_a_transaction(producer: Producer, rows: Sequence[_Row]) -> None:
    producer.begin_transaction()
    _send(producer, rows)
    producer.commit_transaction(_KAFKA_S)


if __name__ == "__main__":
    main()
