"""A process that answers the checks of producer groups from the table of their local transactions alone."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, Gauge
from txbridge_sqlalchemy import SqlTransactionListener, transactions

from txbridge import ClientMetrics, MessageExt, TransactionProducer
from txbridge.backoff import keep_trying
from txbridge.cli.database import CLOSE_S, START_S, make_engine, service
from txbridge.config.worker import WorkerSettings
from txbridge.interrupts import hand_over
from txbridge.log import get_logger

_log = get_logger("txbridge.answer_checks")


def _nothing(_work: object, _message: MessageExt, _arg: object) -> None:
    """Stand-in for the application's function."""
    raise AssertionError("this process sends nothing")


def run(groups: list[str], database_url: str, patience: float, threads: int, settings: WorkerSettings) -> None:
    """Answer checks until a signal ends the process. Raises as `service`, and what starting
    a client raises.
    """
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
            start_timeout=START_S,
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

    with service(settings, engine, transactions, listener.verify, registry, obstacles, _log) as (
        at_last,
        why_not_ready,
    ):
        ready = Gauge("txbridge_answer_checks_ready", "Whether checks are answered", registry=registry)
        ready.set_function(lambda: not why_not_ready())
        for producer in producers:
            at_last.callback(producer.close, CLOSE_S)
            keep_trying(producer.start, _log, settings.bootstrap_servers)
            running.append(producer)
        ended = threading.Event()
        hand_over(lambda *_: ended.set())
        _log.info("answer_checks_started", groups=groups, barrier=listener.barrier_id())
        ended.wait()
        _log.info("answer_checks_ending")
