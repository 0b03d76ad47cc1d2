"""A process that answers the checks of producer groups from the table of their local transactions alone."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, Gauge
from txbridge_sqlalchemy import SqlTransactionListener

from txbridge import ClientMetrics, MessageExt, TransactionProducer
from txbridge.cli.database import DatabaseWatch, make_engine, verify_table
from txbridge.config.worker import WorkerSettings
from txbridge.interrupts import hand_over
from txbridge.log import get_logger
from txbridge.web.web_server import WebServer

_log = get_logger("txbridge.answer_checks")

#: Seconds that the end waits for lookups and answers. docs/operations.md asks for 25 s between SIGTERM and SIGKILL.
_CLOSE_S = 15.0


def _nothing(_work: object, _message: MessageExt, _arg: object) -> None:
    """Stand-in for the application's function."""
    raise AssertionError("this process sends nothing")


def run(groups: list[str], database_url: str, patience: float, threads: int, settings: WorkerSettings) -> None:
    """Answer checks until a signal ends the process.

    Raises UsageError, LocalProblemError for the database, and what starting a client raises.
    """
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    engine = make_engine(database_url, threads * len(groups))
    registry = CollectorRegistry()
    metrics, database = ClientMetrics(registry), DatabaseWatch(engine, ended)
    listener = SqlTransactionListener(engine, _nothing, patience=patience)
    running: list[TransactionProducer] = []

    def why_not_ready() -> list[str]:
        reasons = [] if len(running) == len(groups) else ["the checks are not read yet"]
        reasons += [f"group {one.group}: no connection to Kafka" for one in running if not one.is_connected]
        return reasons + database.list_problems()

    with ExitStack() as at_last:
        at_last.callback(engine.dispose)
        verify_table(listener, engine)
        database.start()
        ready = Gauge("txbridge_answer_checks_ready", "Whether checks are answered", registry=registry)
        ready.set_function(lambda: not why_not_ready())
        if settings.metrics_port:
            questions = {"/livez": list[str], "/readyz": why_not_ready}
            web = WebServer(settings.metrics_host, settings.metrics_port, registry, questions)
            web.start()
            at_last.callback(web.close)
        for group in groups:
            producer = TransactionProducer(
                group,
                listener,
                settings.librdkafka,
                namespace=settings.namespace,
                check_thread_pool_max_size=threads,
                metrics=metrics,
            )
            at_last.callback(producer.close, _CLOSE_S)
            producer.start()
            running.append(producer)
        # Until here there is nothing to clean up, and a start may wait long for a Kafka that does not answer.
        hand_over(lambda *_: ended.set())
        _log.info("answer_checks_started", groups=groups, barrier=listener.barrier_id())
        ended.wait()
        _log.info("answer_checks_ending")
