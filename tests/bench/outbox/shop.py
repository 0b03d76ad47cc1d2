"""A database and a topic for each way, on one PostgreSQL server and one Kafka."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import make_url

from tests.support.harness import eventually
from tests.support.postgres import Postgres
from txbridge.embedded import EmbeddedKafka

#: A durable server that counts its statements. No checkpoint falls into a measurement: what follows one writes whole
#: pages to the WAL. The defaults are for one connection of each of a hundred users.
SETTINGS = {
    "fsync": "on",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "shared_preload_libraries": "pg_stat_statements",
}
_TABLES = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, item text NOT NULL, amount integer NOT NULL, placed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text NOT NULL, payload text NOT NULL);
CREATE EXTENSION pg_stat_statements;
"""
#: Time for some thousands of Kafka transactions. At 20 a second Java would go on compiling for minutes (s).
_WARM_UP_S, _WARM_UP_PRODUCERS = 15.0, 4
_KAFKA_S = 30.0
_number = itertools.count(1)


@dataclass(frozen=True)
class Shop:
    """A database with empty tables and an empty topic, for one way at a time."""

    kafka: EmbeddedKafka
    postgres: Postgres
    #: For SQLAlchemy, with psycopg.
    url: str
    topic: str
    #: For files of relays.
    folder: Path

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    @property
    def conninfo(self) -> str:
        """For psycopg."""
        return conninfo(self.url)

    def query(self, statement: str) -> float:
        """The single number that this statement returns."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return float(row[0])


def conninfo(url: str) -> str:
    """The conninfo of psycopg for an URL of SQLAlchemy."""
    named = make_url(url)
    return f"host={named.query['host']} port={named.port} user={named.username} dbname={named.database}"


@contextmanager
def new_shop(kafka: EmbeddedKafka, postgres: Postgres, folder: Path) -> Iterator[Shop]:
    """A new database on this server, and a new topic with one partition."""
    name = f"shop{next(_number)}"
    with psycopg.connect(conninfo(postgres.url), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = make_url(postgres.url).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute(_TABLES.encode())
    _create_topic(kafka, name)
    own = folder / name
    own.mkdir()
    yield Shop(kafka, postgres, url, name, own)


def warm_up(kafka: EmbeddedKafka) -> None:
    """Have Java compile Kafka's transactions before anything is measured: a shop's Kafka has run for months."""
    topic = "warm-up"
    _create_topic(kafka, topic)

    def commit(number: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{topic}-{number}"})
        producer.init_transactions(_KAFKA_S)
        ended = time.monotonic() + _WARM_UP_S
        while time.monotonic() < ended:
            producer.begin_transaction()
            producer.produce(topic, b"v" * 100)
            producer.commit_transaction(_KAFKA_S)
        producer.close()

    with ThreadPoolExecutor(_WARM_UP_PRODUCERS) as pool:
        list(pool.map(commit, range(_WARM_UP_PRODUCERS)))


def _create_topic(kafka: EmbeddedKafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    eventually(lambda: name in admin.list_topics(timeout=60).topics, 20, f"{name} was not created")
