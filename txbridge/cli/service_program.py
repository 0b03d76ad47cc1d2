"""The processes of `txbridge relay` and `txbridge answer-checks`, and the frame of both: a database and Kafka."""

from __future__ import annotations

import importlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy import Engine, Table, select
from sqlalchemy.exc import SQLAlchemyError
from txbridge_sqlalchemy import SqlTransactionListener, transactions
from txbridge_sqlalchemy.batch_writer import BatchWriter
from txbridge_sqlalchemy.half_settling import HalfSettling
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_state import OutboxState
from txbridge_sqlalchemy.outbox_table import OutboxTable, outbox_ddl
from txbridge_sqlalchemy.relay import Relay, listen_for_commits
from txbridge_sqlalchemy.relay_blocks import Head
from txbridge_sqlalchemy.relay_sessions import limit_transactions
from txbridge_sqlalchemy.row import ask, first_line

from txbridge import ClientMetrics, MessageExt, TransactionProducer
from txbridge.backoff import keep_trying
from txbridge.cli.database import asking, make_engine
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.errors import TxBridgeError, UsageError
from txbridge.interrupts import AT_START, end_on_signal, hand_over
from txbridge.log import get_logger
from txbridge.proof import ProofOfLife, rest_after
from txbridge.web.web_server import serving

#: Seconds that the end waits for lookups, ENDs and answers. docs/operations.md asks for 25 s between SIGTERM and
#: SIGKILL.
_CLOSE_S = 15.0
#: Seconds of an attempt to start a client, which takes one if Kafka answers.
_START_S = 10.0
#: Connections of the pool: the relay's own session, that which deletes, the watch and the count.
_CONNECTIONS = 4
#: Seconds between two counts of the rows that wait. A count reads the whole table, so a slow one is followed by a pause
#: of so many times its duration.
_COUNT_EVERY_S = 5.0
_RARELY = 20
#: Most rows that cannot be sent with a series of their own.
_MOST_SERIES = 100

_checks_log, _relay_log = get_logger("txbridge.answer_checks"), get_logger("txbridge.relay")


class AnswerWatch:
    """Whether a server answers, asked in a thread of its own: one that hangs must not hold up an answer of ours."""

    def __init__(self, server: str, question: Callable[[], object]) -> None:
        self._server = server
        self._question = question
        self._answered = ProofOfLife()
        self._error = ""

    def start(self) -> None:
        threading.Thread(target=self._ask_again, name="txbridge-watch", daemon=True).start()

    def list_problems(self) -> list[str]:
        if not self._error and self._answered.is_fresh:
            return []
        return [self._error or f"{self._server} does not answer: silent for {self._answered.age:.0f} s"]

    def _ask_again(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self._question()
            except TxBridgeError as error:
                # Its text has the server, and the address.
                self._error = first_line(error)
            except SQLAlchemyError as error:
                self._error = f"{self._server} does not answer: {first_line(error)}"
            else:
                self._error = ""
                self._answered.renew(time.monotonic() - began)
            time.sleep(rest_after(time.monotonic() - began))


def _first_key(engine: Engine, table: Table) -> None:
    with engine.connect() as connection:
        ask(connection, select(*table.primary_key).limit(1)).first()


@contextmanager
def service(
    settings: WorkerSettings,
    engine: Engine,
    table: Table,
    verify: Callable[[], object],
    registry: CollectorRegistry,
    obstacles: Callable[[], list[str]],
    log: Any,
) -> Iterator[tuple[ExitStack, Callable[[], list[str]]]]:
    """Wait for the database. Gives what is closed at the end, and a function that says why the process is not ready.

    `verify` makes sure that `table` can be used, and `obstacles` says why the work does not get on. A signal ends the
    process at once, until the block hands over.

    Raises UsageError and LocalProblemError.
    """
    database = AnswerWatch("the database", lambda: _first_key(engine, table))

    def why_not_ready() -> list[str]:
        return obstacles() + database.list_problems()

    with end_on_signal(AT_START), ExitStack() as at_last:
        at_last.callback(engine.dispose)
        database.start()
        questions = {"/livez": list[str], "/readyz": why_not_ready}
        at_last.enter_context(serving(settings.metrics_host, settings.metrics_port, registry, questions))
        verify = asking(engine, f"the table {table.name} in {{}} cannot be used")(verify)
        keep_trying(verify, log, engine.url.render_as_string())
        yield at_last, why_not_ready


def _nothing(_work: object, _message: MessageExt, _arg: object) -> None:
    """Stand-in for the application's function."""
    raise AssertionError("this process sends nothing")


def run_answer_checks(
    groups: list[str], database_url: str, patience: float, threads: int, settings: WorkerSettings
) -> None:
    """Answer checks until a signal ends the process. Raises as `service`, and what starting a client raises."""
    engine = make_engine(database_url, threads * len(groups))
    registry = CollectorRegistry()
    metrics = ClientMetrics(registry)
    listener = SqlTransactionListener(engine, _nothing, patience=patience)
    producers = [
        TransactionProducer(
            group,
            listener,
            settings.librdkafka,
            namespace=settings.namespace,
            check_thread_pool_max_size=threads,
            start_timeout=_START_S,
            metrics=metrics,
        )
        for group in groups
    ]
    running: list[TransactionProducer] = []

    def obstacles() -> list[str]:
        reasons = [] if len(running) == len(groups) else ["the checks are not read yet"]
        return reasons + [
            f"group {one.group}: no connection to Kafka, or to another cluster"
            for one in running
            if not one.is_connected
        ]

    with service(settings, engine, transactions, listener.verify, registry, obstacles, _checks_log) as (
        at_last,
        why_not_ready,
    ):
        ready = Gauge("txbridge_answer_checks_ready", "Whether checks are answered", registry=registry)
        ready.set_function(lambda: not why_not_ready())
        for producer in producers:
            at_last.callback(producer.close, _CLOSE_S)
            keep_trying(producer.start, _checks_log, settings.bootstrap_servers)
            running.append(producer)
        ended = threading.Event()
        hand_over(lambda *_: ended.set())
        _checks_log.info("answer_checks_started", groups=groups, barrier=listener.barrier_id())
        ended.wait()
        _checks_log.info("answer_checks_ending")


def ddl_for(database_url: str, table_name: str) -> str:
    """The statements that create what a relay of this table needs. Raises UsageError and LocalProblemError."""
    return outbox_ddl(make_engine(database_url, 1).dialect, table_of(table_name))


def run_relay(database_url: str, table_name: str, settings: WorkerSettings) -> None:
    """Send rows until a signal ends the process. Raises as `service`, and what looking at Kafka raises."""
    table = table_of(table_name)
    engine = make_engine(database_url, _CONNECTIONS)
    limit_transactions(engine)
    registry = CollectorRegistry()
    names, rows = Names(settings.namespace), OutboxRows(engine, table)
    state, writer = OutboxState(engine, rows), BatchWriter(settings.librdkafka, names)
    metrics = RelayMetrics(registry, rows)
    relay = Relay(rows, state, writer, HalfSettling(settings.librdkafka, names), metrics)
    # An idle relay asks Kafka nothing, and one that commits learns of an outage after a time-out.
    kafka = AnswerWatch("Kafka", writer.greet_kafka)
    kafka.start()

    def obstacles() -> list[str]:
        return [relay.problem] if relay.problem else kafka.list_problems()

    def verify() -> None:
        rows.verify()
        state.verify()

    with service(settings, engine, table.state, verify, registry, obstacles, _relay_log) as (_, why_not_ready):
        # A topic that is missing ends the process here, and a Kafka that is away is waited for.
        weak = keep_trying(writer.verify_topic, _relay_log, settings.bootstrap_servers).weak
        if weak:
            _relay_log.warning("topics_differ", topics=weak, next="rows are sent as always")
        ended = threading.Event()
        hand_over(lambda *_: ended.set())
        metrics.watch_relay(relay, why_not_ready, ended)
        listen_for_commits(engine, table.name, relay.wake, ended)
        _relay_log.info("relay_started", table=table.name)
        relay.run(ended)
        _relay_log.info("relay_ending")


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

    def __init__(self, registry: CollectorRegistry, rows: OutboxRows) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"txbridge_relay_{name}", text, labels, registry=registry)

        self._rows = rows
        self._sent = Counter("txbridge_relay_rows_sent_total", "Rows that were sent", registry=registry)
        batches = Counter(
            "txbridge_relay_batches_total", "Batches, by what became of them", ["outcome"], registry=registry
        )
        # The series are created now, because Prometheus sees an increase only in a series that it has seen before.
        self._batches = {outcome: batches.labels(outcome) for outcome in ("committed", "aborted")}
        self._waiting = gauge("rows_waiting", "Rows in the outbox")
        self._oldest = gauge("oldest_row_seconds", "Age of the oldest row in the outbox; 0 without one")
        self._working = gauge("working", "Whether this relay sends the rows, and does not stand by")
        self._ready = gauge("ready", "Whether rows are sent, here or by another relay")
        self._blocked = gauge("rows_blocked", "Rows that cannot be sent; later ones of their key or topic wait")
        self._blocked_rows = gauge("blocked_row", "1 for each of these rows, 100 at most", "row", "topic")

    def on_batch(self, outcome: str, rows: int) -> None:
        self._batches[outcome].inc()
        if outcome == "committed":
            self._sent.inc(rows)

    def on_blocked(self, head: Head) -> None:
        row, scope = head.row, head.scope.name.lower()
        what = {"row": str(row.id), "topic": row.topic, "blocks": scope}
        _relay_log.error(
            "outbox_row_blocked", **what, reason=head.reason, next="it stays in the table, and is tried again"
        )

    def watch_relay(self, relay: Relay, why_not_ready: Callable[[], list[str]], ended: threading.Event) -> None:
        """Measure this relay until `ended` is set, and count its rows."""
        self._working.set_function(lambda: relay.is_working)
        self._ready.set_function(lambda: not why_not_ready())
        threading.Thread(target=self._count_rows, args=(self._rows, ended), name="txbridge-count", daemon=True).start()

    def _show_blocked(self) -> None:
        heads = list(self._rows.blocks)
        self._blocked.set(len(heads))
        self._blocked_rows.clear()
        for head in heads[:_MOST_SERIES]:
            self._blocked_rows.labels(str(head.row.id), str(head.row.topic)).set(1)

    def _count_rows(self, rows: OutboxRows, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.monotonic()
            self._show_blocked()
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
