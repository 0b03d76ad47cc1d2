"""A process that sends the rows of an outbox table."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from txbridge_sqlalchemy.commit_listener import listen_for_commits
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_table import OutboxTable, outbox_ddl
from txbridge_sqlalchemy.relay import Relay
from txbridge_sqlalchemy.relay_lane import RelayListener
from txbridge_sqlalchemy.relay_sessions import limit_transactions
from txbridge_sqlalchemy.row import first_line
from txbridge_sqlalchemy.table import ddl

from txbridge import ClientMetrics
from txbridge.cli.database import DatabaseWatch, make_engine, verify_table
from txbridge.cli.relay_metrics import RelayMetrics
from txbridge.client.lane_producer import LaneProducer
from txbridge.config.worker import WorkerSettings
from txbridge.errors import LocalProblemError, UsageError
from txbridge.interrupts import hand_over
from txbridge.log import get_logger
from txbridge.web.web_server import WebServer

_log = get_logger("txbridge.relay")

#: Connections of the pool: two lookups of checks, the relay's own session, the watch. A lane needs one more, but most
#: have none at a time. Those beyond the pool are closed after use.
_CONNECTIONS = 8
#: Seconds that the end waits for ENDs and answers. docs/operations.md asks for 25 s between SIGTERM and SIGKILL.
_CLOSE_S = 15.0


def ddl_for(database_url: str, table_name: str) -> str:
    """The statements that create what a relay of this table needs. Raises UsageError and LocalProblemError."""
    dialect = make_engine(database_url, 1).dialect
    return ddl(dialect) + outbox_ddl(dialect, table_of(table_name))


def run(group: str, database_url: str, table_name: str, patience: float, settings: WorkerSettings) -> None:
    """Send rows until a signal ends the process.

    Raises UsageError, LocalProblemError for the database, and what starting a client raises.
    """
    table = table_of(table_name)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    engine = make_engine(database_url, _CONNECTIONS)
    limit_transactions(engine)
    registry = CollectorRegistry()
    database, metrics = DatabaseWatch(engine, ended), RelayMetrics(registry)
    listener = RelayListener(engine, patience)
    producer = LaneProducer(
        group, listener, settings.librdkafka, namespace=settings.namespace, metrics=ClientMetrics(registry)
    )
    running: list[Relay] = []

    def why_not_ready() -> list[str]:
        reasons = [] if running else ["the relay is starting"]
        if running and not producer.is_connected:
            reasons.append("no connection to Kafka")
        return reasons + database.list_problems() + [text for one in running for text in one.list_problems()]

    with ExitStack() as at_last:
        at_last.callback(engine.dispose)
        verify_table(listener, engine)
        database.start()
        if settings.metrics_port:
            questions = {"/livez": list[str], "/readyz": why_not_ready}
            web = WebServer(settings.metrics_host, settings.metrics_port, registry, questions)
            web.start()
            at_last.callback(web.close)
        at_last.callback(producer.close, _CLOSE_S)
        rows = _rows_of(engine, table, producer.half_partitions)
        # Until here there is nothing to clean up, and a start may wait long for a Kafka that does not answer.
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


def _rows_of(engine: Engine, table: OutboxTable, lanes: int) -> OutboxRows:
    rows = OutboxRows(engine, table, lanes)
    try:
        rows.verify()
    except SQLAlchemyError as error:
        raise LocalProblemError(
            f"the outbox in {engine.url.render_as_string()} cannot be read: {first_line(error)}"
        ) from None
    return rows
