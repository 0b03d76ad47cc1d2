"""A process that sends the rows of an outbox table, and its metrics."""

from __future__ import annotations

import importlib
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.exc import SQLAlchemyError
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_table import OutboxTable, outbox_ddl
from txbridge_sqlalchemy.relay import Relay, listen_for_commits
from txbridge_sqlalchemy.relay_lane import RelayListener
from txbridge_sqlalchemy.relay_sessions import limit_transactions
from txbridge_sqlalchemy.table import ddl

from txbridge import ClientMetrics
from txbridge.backoff import keep_trying
from txbridge.cli.database import CLOSE_S, START_S, asking, make_engine, service
from txbridge.client.lane_producer import LaneProducer
from txbridge.config.worker import WorkerSettings
from txbridge.errors import UsageError
from txbridge.interrupts import hand_over
from txbridge.log import get_logger

_log = get_logger("txbridge.relay")

#: Connections of the pool: two lookups of checks, the relay's own session, the watch. A lane needs one more, but most
#: have none at a time. Those beyond the pool are closed after use.
_CONNECTIONS = 8
#: Seconds between two counts of the rows that wait. A count reads the whole table, so a slow one is followed by a pause
#: of so many times its duration.
_COUNT_EVERY_S = 5.0
_RARELY = 20
#: Seconds after which a refused row is forgotten: the relay meets it again every minute while it is there.
_REFUSED_FOR_S = 90.0


def ddl_for(database_url: str, table_name: str) -> str:
    """The statements that create what a relay of this table needs. Raises UsageError and LocalProblemError."""
    dialect = make_engine(database_url, 1).dialect
    return ddl(dialect) + outbox_ddl(dialect, table_of(table_name))


def run(group: str, database_url: str, table_name: str, patience: float, settings: WorkerSettings) -> None:
    """Send rows until a signal ends the process. Raises as `service`, and what starting a client
    raises.
    """
    table = table_of(table_name)
    engine = make_engine(database_url, _CONNECTIONS)
    limit_transactions(engine)
    registry = CollectorRegistry()
    metrics, listener = RelayMetrics(registry), RelayListener(engine, patience)
    producer = LaneProducer(
        group,
        listener,
        settings.librdkafka,
        namespace=settings.namespace,
        start_timeout=START_S,
        metrics=ClientMetrics(registry),
    )
    running: list[Relay] = []

    def obstacles() -> list[str]:
        reasons = [] if running else ["the relay is starting"]
        if running and not producer.is_connected:
            reasons.append("no connection to Kafka, or to another cluster")
        return reasons + [text for one in running for text in one.list_problems()]

    with service(settings, engine, listener, registry, obstacles, _log) as (at_last, why_not_ready):
        at_last.callback(producer.close, CLOSE_S)
        lanes = keep_trying(lambda: producer.half_partitions, _log, settings.bootstrap_servers)
        rows = OutboxRows(engine, table, lanes)
        keep_trying(asking(engine, "the outbox in {} cannot be read")(rows.verify), _log, engine.url.render_as_string())
        ended = threading.Event()
        hand_over(lambda *_: ended.set())
        relay = Relay(rows, producer, metrics)
        metrics.watch_relay(relay, rows, why_not_ready, ended)
        running.append(relay)
        listen_for_commits(engine, table.name, relay.wake_lanes, ended)
        _log.info("relay_started", group=group, table=table.name, lanes=rows.lanes, barrier=listener.barrier_id())
        relay.run(ended)
        _log.info("relay_ending")


def table_of(name: str) -> OutboxTable:
    """The table of `--table`: of txbridge's layout by its name, or any other by the place of its description in Python.

    Raises UsageError if there is no such description.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        schema, _, table = name.rpartition(".")
        return OutboxTable.for_txbridge(table, schema or None)
    # Python looks beside the program, and not here, where `python -m` would.
    sys.path.insert(0, str(Path.cwd()))
    try:
        described = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--table {name} is not found: {error}") from None
    if not isinstance(described, OutboxTable):
        raise UsageError(f"--table {name} names no OutboxTable but {type(described).__name__}")
    return described


class RelayMetrics:
    """Counts what a relay does, and how much is left to do. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"txbridge_relay_{name}", text, registry=registry)

        self._sent = Counter("txbridge_relay_rows_sent_total", "Rows that were sent and deleted", registry=registry)
        batches = Counter(
            "txbridge_relay_batches_total", "Batches, by what became of them", ["outcome"], registry=registry
        )
        # The series are created now, because Prometheus sees an increase only in a series that it has seen before.
        self._batches = {outcome: batches.labels(outcome) for outcome in ("committed", "rolled_back")}
        self._waiting = gauge("rows_waiting", "Rows in the outbox")
        self._oldest = gauge("oldest_row_seconds", "Age of the oldest row in the outbox; 0 without one")
        self._lanes = gauge("lanes", "Lanes that this relay holds")
        self._ready = gauge("ready", "Whether rows are sent, here or by the relays that hold the other lanes")
        gauge("rows_refused", "Rows of this relay's lanes that cannot be sent").set_function(
            lambda: len(self.list_refusals())
        )
        self._refused: dict[tuple[int, Any], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def on_batch(self, outcome: str, rows: int) -> None:
        self._batches[outcome].inc()
        if outcome == "committed":
            self._sent.inc(rows)

    def on_refusal(self, lane: int, row_id: Any, reason: str) -> None:
        is_known = (lane, row_id) in self.list_refusals()
        with self._lock:
            self._refused[lane, row_id] = (time.monotonic(), reason)
        if not is_known:
            _log.error("outbox_row_refused", row=str(row_id), lane=lane, reason=reason, next="it stays in the table")

    def list_refusals(self) -> dict[tuple[int, Any], str]:
        """Rows that cannot be sent, by lane and id, with the reasons."""
        since = time.monotonic() - _REFUSED_FOR_S
        with self._lock:
            self._refused = {row: one for row, one in self._refused.items() if one[0] >= since}
            return {row: reason for row, (_, reason) in self._refused.items()}

    def watch_relay(
        self, relay: Relay, rows: OutboxRows, why_not_ready: Callable[[], list[str]], ended: threading.Event
    ) -> None:
        """Measure this relay until `ended` is set, and count these rows."""
        self._lanes.set_function(lambda: relay.lanes)
        self._ready.set_function(lambda: not why_not_ready())
        threading.Thread(target=self._count_rows, args=(rows, ended), name="txbridge-count", daemon=True).start()

    def _count_rows(self, rows: OutboxRows, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.monotonic()
            try:
                found = rows.count_waiting()
            except SQLAlchemyError:
                # `/readyz` has the reason. An unknown value is not reported as one.
                waiting, oldest = math.nan, math.nan
            else:
                waiting, oldest = found.rows, found.oldest or 0.0
            self._waiting.set(waiting)
            self._oldest.set(oldest)
            ended.wait(max(_COUNT_EVERY_S, _RARELY * (time.monotonic() - began)))
