"""`run_audit`: one audit of a running Kafka, and its report."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from txbridge_audit.cluster import facts
from txbridge_audit.cluster.cuts import SETTLE_TIMEOUT
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import Plan, Progress
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.follow import continue_once
from txbridge_audit.engines.local.run import audit_in_full, until_leaders_stay
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditLimits, TopicPartition
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report import formats
from txbridge_audit.report.formats import LedgerFormat
from txbridge_audit.report.model import AuditReport

if TYPE_CHECKING:  # the engine without Java needs no Spark
    from pyspark.sql import SparkSession

#: Number of half messages up to which the local engine is chosen, if no engine is. Offsets are counted instead of
#: messages. It takes 50 us of a processor for each, so these take 15 s: about as long as Spark takes to start and plan.
LOCAL_MOST = 300_000


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
    ledger_path: str | None = None,
    continued: bool = False,
    ledger_format: LedgerFormat = LedgerFormat.PARQUET,
    with_overview: bool = False,
    progress: Progress = lambda _: None,
) -> AuditReport:
    """Audit every transaction that HALF still holds. Nothing is written to Kafka.

    `kafka_options` have librdkafka's names (`java.<name>` for Spark's consumer alone). The real topics are those that
    half messages name. `real_topics` adds others, which are searched for phantoms. `selection` says which transactions
    are audited, if not all.

    With `spark` that session is used. Else the `engine`, or the one that fits the number of half messages. If that is
    Spark, a session is started and stopped.

    `settle_timeout` is the number of seconds that each cut waits for open Kafka transactions. Records that these hide
    after that are not judged, and are a finding. `limits` are the workers' settings on which STUCK depends.

    `ledger_path` is a new folder, or a URI that Spark can write to, for the ledger in `ledger_format`. With `continued`
    it is a folder of this machine, and may be the ledger of an earlier `continued` audit. Then the local engine reads
    only newer records, and the report is about all of them. With `with_overview` the report has the summaries that the
    page shows. `progress` is called with a short text for each phase.

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
    if continued:
        by_spark = spark is not None or engine is AuditEngine.SPARK
        formats.refuse_to_continue(
            plan.selection, ledger_path, ledger_format, by_spark=by_spark, with_overview=with_overview
        )
    names = facts.named(namespace)
    if ledger_path is not None:
        ledger_path = formats.resolved(ledger_path)
        if not continued:
            formats.refuse_existing_locally(ledger_path)
        formats.refuse_without_library()
    settings = kafka_settings(bootstrap_servers, kafka_options)
    cluster = AuditedCluster(settings)
    topics = facts.internal_topics(cluster, names)  # first, so that a missing topic is reported at once
    folder = None if ledger_path is None else formats.local_folder(ledger_path, continued=continued)
    if continued:
        chosen = AuditEngine.LOCAL
    else:
        wanted = AuditEngine.SPARK if spark else needed_engine(engine, ledger_path, ledger_format)
        chosen = wanted or fitting_engine(cluster, topics[names.half], progress)

    source = AuditedTopics(cluster, settings, names, topics, progress)
    if chosen is AuditEngine.SPARK:
        # Only here: Spark takes a second to load.
        from txbridge_audit.engines.spark.spark_audit import spark_audit  # noqa: PLC0415

        return spark_audit(
            source,
            plan,
            spark=spark,
            ledger_path=ledger_path,
            ledger_format=ledger_format,
            with_overview=with_overview,
        )
    if continued and folder is not None:
        report = continue_once(source, folder, plan)
    else:
        report = until_leaders_stay(
            progress, lambda: audit_in_full(source, plan, ledger=folder, with_overview=with_overview)
        )
    if folder is not None:
        formats.write_summary(report.to_json(), folder)
    return report


def needed_engine(
    engine: AuditEngine | None, ledger_path: str | None, ledger_format: LedgerFormat
) -> AuditEngine | None:
    """The engine that was asked for, or the one that the ledger needs; None if either would do.

    Raises CouldNotAuditError when the one that was asked for cannot write the ledger.
    """
    if ledger_format is not LedgerFormat.PARQUET:
        lacking = "it writes Parquet files: leave --ledger-format out"
    elif ledger_path is not None and formats.local_folder(ledger_path) is None:
        lacking = "it writes a ledger into a folder of this machine: give --ledger one, as file:///... if need be"
    else:
        return engine
    if engine is AuditEngine.LOCAL:
        raise CouldNotAuditError(f"the local engine cannot write this ledger, because {lacking}; or use --engine spark")
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
