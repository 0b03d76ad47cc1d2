"""Debezium in Kafka Connect, as its documentation recommends it for an outbox.

It has the JVM's options of Kafka's own scripts, pgoutput and the outbox event router. All settings are defaults but for
these: the connector looks for new changes every 50 ms instead of every 500 ms, and writes no headers for OpenLineage.
With `exactly_once` the worker and the connector have Kafka Connect's exactly-once support (KIP-618), which needs its
distributed mode. Without it the mode is standalone: idle on a busy machine, it took 24 ms a second instead of 41, and
18 ms of Kafka instead of 41. A killed one also starts sooner, because no group waits for the end of its session. The
table keeps its rows: a service that deletes them pays for one more statement of each order, and one that drops old
partitions of the table pays nearly nothing. `connect.lock` is what Maven resolves for debezium-connector-postgres with
connect-runtime, connect-json and connect-transforms of the measured Kafka and slf4j-simple, without which Connect logs
nothing. Its format is that of txbridge/embedded/jars.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request

from sqlalchemy import make_url

from tests.bench.outbox.relays import NoRelay, Relay, Settings, Start
from tests.bench.outbox.shop import Shop
from tests.peer.jars import locked_class_path
from tests.support import http
from tests.support.harness import eventually
from txbridge.embedded.java import describe_failure, find_java, read_tail
from txbridge.embedded.ports import HOST, free_port
from txbridge.embedded.process import ChildProcess

DEBEZIUM_VERSION = "3.6.1"
_LOCK = Path(__file__).with_name("connect.lock")
#: As in Kafka's bin/connect-distributed.sh and bin/kafka-run-class.sh.
_JAVA = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
#: An empty round, as of the polled relays (ms).
_POLL_MS = 50
#: A worker whose predecessor was killed waits for the end of its session, 10 s, and then for its tasks. The rest is for
#: two busy cores.
_START_S = 180.0
#: Connect gives its tasks 5 s, and closes three Kafka clients besides.
_STOP_S = 60.0
_LOOK_S = 0.1
#: Settings of PostgreSQL for a connector.
LOGICAL = {"wal_level": "logical", "listen_addresses": HOST}


class Connect(NoRelay):
    """A worker of Kafka Connect with one connector."""

    def __init__(self, shop: Shop, exactly_once: bool) -> None:
        self._shop, self._exactly_once = shop, exactly_once
        self._java = find_java().executable
        self._classes = locked_class_path(f"debezium-{DEBEZIUM_VERSION}", f"Debezium {DEBEZIUM_VERSION}", _LOCK)
        self._port = free_port()
        self._settings, self._log = shop.folder / "connect.properties", shop.folder / "connect.log"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in self._of_worker().items()))
        self._process: ChildProcess | None = None

    @property
    def pids(self) -> Sequence[int]:  # type: ignore[override]
        return [] if self._process is None else [self._process.pid]

    def start(self) -> None:
        """Start the worker, and return when the connector reads the database's log."""
        mode = "ConnectDistributed" if self._exactly_once else "ConnectStandalone"
        main = ("-cp", self._classes, f"org.apache.kafka.connect.cli.{mode}", self._settings)
        self._process = ChildProcess.launch_program([self._java, *_JAVA, *main], output=self._log)
        deadline = time.monotonic() + _START_S
        # A kill before this would find Connect in the middle of its start, not of its work.
        while not self._shop.query("SELECT count(*) FROM pg_replication_slots WHERE active"):
            late = self._process.poll() is not None or time.monotonic() > deadline
            assert not late, describe_failure("the connector did not start", read_tail(self._log), self._log)
            self._configure()
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(_STOP_S)
            self._process = None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process = None

    def _configure(self) -> None:
        """Give the worker its connector unless it has it: one that is not ready yet may forget what it is told."""
        address = f"http://{HOST}:{self._port}/connectors/outbox"
        if http.ask_if_there(f"{address}/status").status == 404:
            body = json.dumps(self._of_connector()).encode()
            request = Request(f"{address}/config", body, {"Content-Type": "application/json"}, method="PUT")
            http.ask_if_there(request)

    def _of_worker(self) -> dict[str, object]:
        stored: dict[str, object] = {"offset.storage.file.filename": self._shop.folder / "offsets"}
        if self._exactly_once:
            group = f"{self._shop.topic}-connect"
            stored = {"group.id": group, "exactly.once.source.support": "enabled"}
            for what in ("config", "offset", "status"):
                stored |= {f"{what}.storage.topic": f"{group}-{what}", f"{what}.storage.replication.factor": 1}
        text = "org.apache.kafka.connect.storage.StringConverter"
        return {
            "bootstrap.servers": self._shop.servers,
            "listeners": f"http://{HOST}:{self._port}",
            # Every jar is on the class path.
            "plugin.discovery": "service_load",
            "key.converter": text,
            "value.converter": text,
            **stored,
        }

    def _of_connector(self) -> dict[str, str]:
        database = make_url(self._shop.url)
        router = {
            "type": "io.debezium.transforms.outbox.EventRouter",
            "route.by.field": "topic",
            "route.topic.replacement": "${routedByValue}",
            "table.field.event.id": "id",
            "table.field.event.key": "key",
            "table.field.event.payload": "payload",
        }
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": HOST,
            "database.port": str(database.port),
            "database.user": str(database.username),
            "database.dbname": str(database.database),
            "topic.prefix": self._shop.topic,
            "table.include.list": "public.outbox",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
            "snapshot.mode": "no_data",
            "poll.interval.ms": str(_POLL_MS),
            "extended.headers.enabled": "false",
            "transforms": "outbox",
            **{f"transforms.outbox.{name}": value for name, value in router.items()},
            **({"exactly.once.support": "required"} if self._exactly_once else {}),
        }


def connect(exactly_once: bool) -> Start:
    """Give Debezium with default delivery, at least once, or exactly once."""

    @contextmanager
    def start(shop: Shop, _: Settings) -> Iterator[Relay]:
        relay = Connect(shop, exactly_once)
        try:
            yield relay
        finally:
            relay.stop()
            _drop_slot(shop)

    return start


def _drop_slot(shop: Shop) -> None:
    """Drop the connector's slot: its name is the server's, not the database's, and unread it keeps the log."""
    slots = "FROM pg_replication_slots"
    eventually(lambda: not shop.query(f"SELECT count(*) {slots} WHERE active"), _STOP_S, "the slot is still read")
    shop.query(f"SELECT count(pg_drop_replication_slot(slot_name)) {slots}")
