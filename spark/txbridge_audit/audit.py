"""`run_audit` and `follow`: one audit of a running Kafka with its report, and one that goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from txbridge_audit.cluster import facts
from txbridge_audit.cluster.cuts import SETTLE_TIMEOUT
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import PastAudit, Plan, Progress
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.local_rows import MEMORY, local_audit
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.engines.run import until_leaders_stay
from txbridge_audit.engines.violations_topic import Alarms, existing_partitions
from txbridge_audit.errors import CouldNotAuditError, ElectionError, KafkaAwayError
from txbridge_audit.judge.facts import AuditLimits, AuditSelection, TopicPartition
from txbridge_audit.ledger import place
from txbridge_audit.ledger.place import write_summary
from txbridge_audit.report.model import AuditReport, AuditStep

if TYPE_CHECKING:  # the engine without Java needs no Spark
    from pyspark.sql import SparkSession

#: Number of half messages up to which the local engine is chosen, if no engine is. Offsets are counted instead of
#: messages. It takes 25 to 30 us of a processor for each, on one of them. Spark takes 45, and starts for 15 s.
LOCAL_MOST = 1_000_000
#: Seconds from the end of a step to the beginning of the next, unless the user says otherwise. Beside 2,000
#: transactions a second a violation was raised after 0.7 s, and after 8 s with pauses of 2 s, whose steps are larger.
#: Both took a quarter of a processor. Beside 20 a second it costs 0.05 instead of 0.02 processors.
#: `tests.bench follow --rate` measures it.
INTERVAL = 0.3
#: Seconds between two looks for new records while nothing is written. A look costs milliseconds of a processor.
LOOK = 0.25
#: Seconds that a cut waits for open Kafka transactions. A worker's take milliseconds. One that is open longer must not
#: delay the step: a later step judges the records that it hides.
FOLLOW_SETTLE_TIMEOUT = 2.0
#: Seconds between two steps while nothing is written. Time makes transactions overdue, and retention removes records.
QUIET = 30.0


class AuditEngine(StrEnum):
    """What reads the topics and brings the records of each transaction together. The verdicts are the same."""

    #: This process, without Java.
    LOCAL = "local"
    SPARK = "spark"


def run_audit(
    bootstrap_servers: str,
    *,
    namespace: str = "",
    kafka_options: Mapping[str, str] | None = None,
    real_topics: Collection[str] = (),
    spark: SparkSession | None = None,
    engine: AuditEngine | None = None,
    selection: AuditSelection | None = None,
    settle_timeout: float = SETTLE_TIMEOUT,
    limits: AuditLimits | None = None,
    memory: int = MEMORY,
    ledger_path: str | None = None,
    continued: bool = False,
    with_overview: bool = False,
    at: PastAudit | None = None,
    progress: Progress = lambda _: None,
) -> AuditReport:
    """Audit every transaction that HALF still holds. Nothing is written to Kafka.

    `kafka_options` have librdkafka's names (`java.<name>` for Spark's consumer alone). The real topics are those that
    half messages name. `real_topics` adds others, which are searched for phantoms. `selection` says which transactions
    are audited, if not all.

    With `spark` that session is used. Else the `engine`, or the one that fits the number of half messages. If that is
    Spark, a session is started and stopped.

    `settle_timeout` is the number of seconds that each cut waits for open Kafka transactions. Records that these hide
    after that are not judged, and are a finding. `limits` are the workers' settings on which STUCK depends. The local
    engine keeps `memory` MiB of what it has read in memory, and the rest in a temporary file.

    `ledger_path` is a new folder, or a URI that Spark can write to, for the ledger. With `continued`
    it is a folder of this machine, and may be the ledger of an earlier `continued` audit. Then the local engine reads
    only newer records, and the report is about all of them. With `with_overview` the report has the summaries that the
    page shows. `progress` is called with a short text for each phase.

    With `at` that earlier audit is made again at its cuts, with its selection and limits.

    Raises CouldNotAuditError when no verdict can be given. The message says what to do. May be run at any time, beside
    running workers and clients.
    """
    plan = Plan(
        int(time.time() * 1000),
        limits or AuditLimits(),
        selection or AuditSelection(),
        frozenset(real_topics),
        settle_timeout,
    )
    if at is not None and continued:
        raise CouldNotAuditError("a continued audit is about what is there now: leave --at or --continue out")
    if at is not None:
        plan = replace(plan, now=at.now, limits=at.limits, selection=at.selection, past=at, again_at=plan.now)
    by_spark, folder = spark is not None or engine is AuditEngine.SPARK, None
    if continued:
        folder = place.continued_folder(plan.selection, ledger_path, by_spark=by_spark, with_overview=with_overview)
    elif ledger_path is not None:
        folder = place.local_folder(ledger_path, by_local_engine=engine is AuditEngine.LOCAL)
        ledger_path = place.resolved(ledger_path)
        if folder is not None:
            place.prepare_folder(folder)
    source = _connected(bootstrap_servers, namespace, kafka_options, progress)
    if continued and folder is not None:
        return continue_once(source, folder, plan)
    wanted = AuditEngine.SPARK if spark else needed_engine(engine, ledger_path)
    chosen = wanted or fitting_engine(source.cluster, source.partitions[source.names.half], progress)
    if chosen is AuditEngine.LOCAL:
        return until_leaders_stay(
            progress, lambda: local_audit(source, plan, ledger=folder, with_overview=with_overview, memory=memory)
        )
    # Only here: Spark takes a second to load.
    from txbridge_audit.engines.spark.spark_audit import spark_audit  # noqa: PLC0415

    return spark_audit(*(source, plan), spark=spark, ledger_path=ledger_path, with_overview=with_overview)


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
    engine: AuditEngine | None = None,
    limits: AuditLimits | None = None,
    progress: Progress = lambda _: None,
    on_ready: Callable[[], None] = lambda: None,
    on_step: Callable[[AuditStep], None] = lambda _: None,
) -> AuditReport:
    """Audit new records until `stop` is set. Then write the ledger and return the report of everything so far.

    `ledger_path` is that of `run_audit` with `continued`, and each of the two may continue the ledger of the other. New
    violations are passed to `on_step`. If a `violations_topic` is given, each is written there once, even after a
    crash. The local engine follows: another `engine` is refused.

    `on_ready` is called when the first step is about to begin.

    While Kafka is away it waits. Raises CouldNotAuditError. When it is called again, it continues after the last step
    that counts.
    """
    by_spark = engine is AuditEngine.SPARK
    folder = place.continued_folder(AuditSelection(), ledger_path, by_spark=by_spark, with_overview=False)
    source = _connected(bootstrap_servers, namespace, kafka_options, progress)
    if violations_topic is not None:
        existing_partitions(source.cluster, violations_topic)

    def plan(now: int) -> Plan:
        return Plan(now, limits or AuditLimits(), AuditSelection(), frozenset(real_topics), FOLLOW_SETTLE_TIMEOUT)

    on_ready()
    while True:
        try:
            return _follow(source, folder, plan, stop, violations_topic, interval, on_step)
        except (KafkaAwayError, ElectionError) as error:
            if stop.is_set():
                raise
            progress(f"{error}; the audit goes on when it does")
            stop.wait(QUIET)


def _follow(
    source: AuditedTopics,
    ledger: Path,
    plan_at: Callable[[int], Plan],
    stop: threading.Event,
    violations_topic: str | None,
    interval: float,
    on_step: Callable[[AuditStep], None],
) -> AuditReport:
    """Make steps until `stop` is set, then a last one. `plan_at` gives the plan of a step that begins then (ms)."""
    with closing(StateStore(ledger)) as state:
        steps, raise_all = LocalSteps(source, state), None
        if violations_topic is not None:
            alarms = Alarms(source.settings, source.cluster, violations_topic, steps.audit)
            alarms.recall(steps.alarms)
            raise_all = alarms.send
        began = 0.0
        while True:
            last, now = stop.is_set(), time.time()
            if not last and now - began < QUIET and not steps.has_news():
                stop.wait(min(LOOK, interval))
                continue
            began = now
            into = ledger if last or steps.is_ledger_due(now) else None
            make = partial(steps.make_step, plan_at(int(now * 1000)), raise_all, ledger=into)
            step = until_leaders_stay(source.say, make)
            on_step(step)
            if last:
                write_summary(step.report.to_json(), ledger)
                return step.report
            stop.wait(interval)


def _connected(
    bootstrap_servers: str, namespace: str, kafka_options: Mapping[str, str] | None, progress: Progress
) -> AuditedTopics:
    """The internal topics of a namespace. They come first, so that a missing one is reported at once."""
    names, settings = facts.named(namespace), kafka_settings(bootstrap_servers, kafka_options)
    cluster = AuditedCluster(settings)
    return AuditedTopics(cluster, settings, names, facts.internal_topics(cluster, names), progress)


def continue_once(source: AuditedTopics, ledger: Path, plan: Plan) -> AuditReport:
    """Make one step of the ledger in this folder. Raises CouldNotAuditError."""
    with closing(StateStore(ledger)) as state:
        steps = LocalSteps(source, state)
        report = until_leaders_stay(source.say, lambda: steps.make_step(plan, ledger=ledger)).report
        write_summary(report.to_json(), ledger)
        return report


def needed_engine(engine: AuditEngine | None, ledger_path: str | None) -> AuditEngine | None:
    """The engine that was asked for, or the one that the ledger needs; None if either would do.

    Raises CouldNotAuditError when the one that was asked for cannot write the ledger.
    """
    is_local = engine is AuditEngine.LOCAL
    if ledger_path is None or place.local_folder(ledger_path, by_local_engine=is_local) is not None:
        return engine
    if is_local:
        raise CouldNotAuditError(
            "the local engine cannot write this ledger, because it writes into a folder of this machine: give --ledger "
            "one, as file:///... if need be; or use --engine spark"
        )
    return AuditEngine.SPARK


def fitting_engine(cluster: AuditedCluster, half: Collection[TopicPartition], progress: Progress) -> AuditEngine:
    """The engine that fits the number of half messages; Spark for a job that was submitted to it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return AuditEngine.SPARK
    starts, ends = cluster.log_starts(half), cluster.high_watermarks(half)
    number = sum(ends[key] - starts[key] for key in half)
    chosen = AuditEngine.LOCAL if number <= LOCAL_MOST else AuditEngine.SPARK
    progress(f"{number:,} half messages: --engine {chosen}")
    return chosen
