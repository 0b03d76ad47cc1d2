"""The loop of `txbridge audit --follow`: one step (steps.py) after the other, until it is stopped.

Each step is a micro-batch with offsets of its own choice. Structured Streaming's Kafka source does not fit. It fixes
the ends of all topics at one moment, and reads all of them committed or all of them uncommitted. The verdicts need the
ends in the order of cuts.py, and both isolation levels.

The other parts of that engine have a counterpart here. The state is the rows of working_set.py, and the checkpoint is
that of store.py. A transaction leaves the state when it is closed, or when retention has removed its half message. A
watermark of time does not tell when, because a transaction may wait for days.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from txbridge_audit.cluster import facts
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.spark.incremental.steps import Increments
from txbridge_audit.engines.spark.read.kafka_source import AuditSource
from txbridge_audit.engines.spark.read.spark_session import Progress, spark_session
from txbridge_audit.engines.spark.run import until_leaders_stay
from txbridge_audit.engines.violations_topic import Alarms, existing_partitions
from txbridge_audit.judge.facts import AuditLimits
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report.alarms import AuditStep
from txbridge_audit.report.formats import LedgerFormat, refuse_to_continue, resolved
from txbridge_audit.report.model import AuditReport

#: Seconds from the end of a step to the beginning of the next, unless the user says otherwise.
INTERVAL = 2.0
#: Seconds between two looks for new records while nothing is written. A look costs milliseconds of a processor.
LOOK = 0.25
#: Seconds that a cut waits for open Kafka transactions. A worker's take milliseconds. One that is open longer must not
#: delay the step: a later step judges the records that it hides.
SETTLE_TIMEOUT = 2.0
#: Closed transactions are written to the ledger after LEDGER_EVERY seconds, or when more than CARRIED transactions are
#: carried from step to step. Each time makes a file for every day and real topic. Until then every step judges them
#: again.
LEDGER_EVERY, CARRIED = 600.0, 100_000
#: Seconds between two steps while nothing is written. Time makes transactions overdue, and retention removes records.
QUIET = 30.0


def follow(
    bootstrap_servers: str,
    ledger_path: str,
    *,
    stop: threading.Event,
    violations_topic: str | None = None,
    interval: float = INTERVAL,
    namespace: str = "",
    kafka_options: Mapping[str, str] | None = None,
    real_topics: Collection[str] = (),
    spark: SparkSession | None = None,
    limits: AuditLimits | None = None,
    ledger_format: LedgerFormat = LedgerFormat.PARQUET,
    progress: Progress = lambda _: None,
    on_ready: Callable[[], None] = lambda: None,
    on_step: Callable[[AuditStep], None] = lambda _: None,
) -> AuditReport:
    """Audit new records until `stop` is set. Then write the ledger and return the report of everything so far.

    `ledger_path` is that of `run_audit` with `continued`, and each of the two may continue the ledger of the other. New
    violations are passed to `on_step`. If a `violations_topic` is given, each is written there once, even after a
    crash.

    `on_ready` is called when Spark runs, because Spark sets signal handlers of its own when it starts.

    Raises CouldNotAuditError. When it is called again, it continues after the last step that counts.
    """
    refuse_to_continue(AuditSelection(), ledger_path, ledger_format, with_overview=False)
    names = facts.named(namespace)
    ledger_path = resolved(ledger_path)
    settings = kafka_settings(bootstrap_servers, kafka_options)
    cluster = AuditedCluster(settings)
    topics = facts.internal_topics(cluster, names)  # before Spark, so that a missing topic is reported at once
    if violations_topic is not None:
        existing_partitions(cluster, violations_topic)
    in_delta = ledger_format is LedgerFormat.DELTA
    with spark_session(spark, progress, for_days=True, with_delta=in_delta) as session:
        source = AuditSource(session, cluster, settings, names, topics, progress)
        increments = Increments.open(source, ledger_path, ledger_format)
        alarms = None
        if violations_topic is not None:
            alarms = Alarms(settings, cluster, violations_topic, increments.state.audit)
            alarms.recall(increments.state.alarms)
        on_ready()
        carried, began = 0, 0.0
        while True:
            last, now = stop.is_set(), time.time()
            closing = last or carried > CARRIED or now - increments.state.ledger_at / 1000 > LEDGER_EVERY
            if not closing and now - began < QUIET and not increments.has_news():
                stop.wait(min(LOOK, interval))
                continue
            began = now
            plan = Plan(
                int(now * 1000), limits or AuditLimits(), AuditSelection(), frozenset(real_topics), SETTLE_TIMEOUT
            )
            raising = alarms.send if alarms else None
            step = until_leaders_stay(session, progress, partial(increments.step, plan, closing=closing, alarm=raising))
            report = replace(
                step.report,
                started_at=plan.now,
                seconds=time.time() - now,
                bootstrap_servers=bootstrap_servers,
                cluster_id=cluster.cluster_id,
            )
            step = replace(step, report=report)
            on_step(step)
            if last:
                return step.report
            carried = 0 if closing else step.carried
            stop.wait(interval)
