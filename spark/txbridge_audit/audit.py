"""`run_audit`: one audit of a running Kafka, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from txbridge.core.names import Names, is_topic
from txbridge_audit.cluster import facts
from txbridge_audit.cluster.cuts import SETTLE_TIMEOUT, Ends
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.engines.spark.incremental.steps import Increments
from txbridge_audit.engines.spark.incremental.store import positions_before_spark
from txbridge_audit.engines.spark.judge import evaluate, ledger, loss_evidence, overview
from txbridge_audit.engines.spark.judge.fast_path import split
from txbridge_audit.engines.spark.read.filesystems import refuse_without_rename, scheme_of
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.gather import Plan, gather
from txbridge_audit.engines.spark.read.kafka_source import AuditSource
from txbridge_audit.engines.spark.read.selection import takes
from txbridge_audit.engines.spark.read.spark_session import Progress, elections, spark_session
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge.facts import AuditLimits, TopicPartition
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report import delta, formats, parquet
from txbridge_audit.report.formats import LedgerFormat
from txbridge_audit.report.model import AuditReport

#: Number of half messages below which our own Spark is started for a short run, not for high speed. Offsets are counted
#: instead of messages. That is exact enough for this choice, and no result depends on it.
_SMALL = 600_000
#: Number of times in all that an audit is made while leaders change. A rolling restart of three brokers changes each
#: leader twice.
_TRIES = 4

_T = TypeVar("_T")


def run_audit(
    bootstrap_servers: str,
    *,
    namespace: str = "",
    kafka_options: Mapping[str, str] | None = None,
    real_topics: Collection[str] = (),
    spark: SparkSession | None = None,
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
    half messages name. `real_topics` adds others, which are searched for phantoms. With `spark` that session is used,
    else a local one is started and stopped. `selection` says which transactions are audited, if not all.

    `settle_timeout` is the number of seconds that each cut waits for open Kafka transactions. Records that these hide
    after that are not judged, and are a finding. `limits` are the workers' settings on which STUCK depends.

    `ledger_path` is a new folder, or a URI that Spark can write to, for the ledger in `ledger_format`. With `continued`
    it may be the ledger of an earlier `continued` audit. Then only newer records are read, and the report is about all
    of them. With `with_overview` the report has the summaries that the page shows. `progress` is called with a short
    text for each phase.

    Raises CouldNotAuditError when no verdict can be given. The message says what to do. May be run at any time, beside
    running workers and clients.
    """
    started = time.time()
    plan = Plan(
        int(started * 1000),
        limits or AuditLimits(),
        selection or AuditSelection(),
        frozenset(real_topics),
        settle_timeout,
    )
    if continued:
        refuse_to_continue(plan.selection, ledger_path, ledger_format, with_overview=with_overview)
    names = named(namespace)
    if ledger_path is not None and not continued:
        formats.refuse_existing_locally(ledger_path)
    settings = kafka_settings(bootstrap_servers, kafka_options)
    cluster = AuditedCluster(settings)
    topics = facts.internal_topics(cluster, names)  # before Spark, so that a missing topic is reported at once
    read = positions_before_spark(ledger_path) if continued and ledger_path is not None else {}
    small, in_delta = is_small(cluster, topics[names.half], read), ledger_format is LedgerFormat.DELTA
    with spark_session(spark, progress, small=small, with_delta=in_delta) as session:
        source = AuditSource(session, cluster, settings, names, topics, progress)
        if continued and ledger_path is not None:
            increments = Increments.open(source, ledger_path, ledger_format)
            report = until_leaders_stay(session, progress, lambda: increments.step(plan)).report
        else:
            if ledger_path is not None:
                parquet.refuse_existing(session, ledger_path)
            report = until_leaders_stay(
                session,
                progress,
                lambda: _audit(source, plan, ledger_path, ledger_format, with_overview=with_overview),
            )
        report = replace(
            report,
            started_at=plan.now,
            seconds=time.time() - started,
            bootstrap_servers=bootstrap_servers,
            cluster_id=cluster.cluster_id,
        )
        if ledger_path is not None:
            parquet.write_summary(session, report.to_json(), ledger_path)
    return report


def named(namespace: str) -> Names:
    """The names of a namespace. Raises CouldNotAuditError when the names of its topics would not be valid."""
    names = Names(namespace)
    if not is_topic(names.check("x")):
        raise CouldNotAuditError(
            f"{namespace!r} cannot be a namespace: letters, digits and . _ - name topics; check --namespace"
        )
    return names


def is_small(cluster: AuditedCluster, half: Collection[TopicPartition], read: Ends) -> bool:
    """Whether so little of HALF is unread that the audit ends before optimised code would pay off.

    `read` are the offsets up to which earlier audits of the ledger have read.
    """
    starts, ends = cluster.log_starts(half), cluster.high_watermarks(half)
    return sum(ends[key] - max(starts[key], read.get(key, 0)) for key in half) < _SMALL


def until_leaders_stay(spark: SparkSession, say: Progress, audit: Callable[[], _T]) -> _T:
    """Run an audit or a step, and repeat it when a leader changed meanwhile. A repetition overwrites files."""
    attempt = 1
    while True:
        try:
            with elections(spark):
                return audit()
        except ElectionError as error:
            if attempt == _TRIES:
                raise
            say(f"once more: {error}")
        attempt += 1


def refuse_to_continue(
    selection: AuditSelection,
    ledger_path: str | None,
    ledger_format: LedgerFormat = LedgerFormat.PARQUET,
    *,
    with_overview: bool,
) -> None:
    """Raise CouldNotAuditError for options that a continued audit does not take."""
    if ledger_path is None:
        raise CouldNotAuditError("an audit is continued from its ledger: say which with --ledger")
    refuse_without_rename(scheme_of(ledger_path))
    formats.refuse_other_format_locally(ledger_path, ledger_format)
    if selection != AuditSelection():
        raise CouldNotAuditError(
            "a continued audit is about all transactions: leave --since, --until and --only-topic out",
        )
    if with_overview:
        raise CouldNotAuditError(
            "a continued audit reads only what is new, and the page shows all: leave --html out, or audit in full",
        )


def _audit(
    source: AuditSource, plan: Plan, ledger_path: str | None, ledger_format: LedgerFormat, *, with_overview: bool
) -> AuditReport:
    """One audit of everything that the topics hold."""
    with FrameCache(source.spark) as cache:
        gathered = gather(source, cache, plan)
        frames, plain = gathered.frames, None
        if ledger_path is None and not with_overview:
            # Only the ledger and the page need a row for every transaction.
            plain = split(cache, source.names, frames, gathered.facts, plan.selection)
            frames = plain.rest
        rows = cache.keep(ledger.build(source.spark, source.names, frames, gathered.facts))
        anchors = [*loss_evidence.anchors(rows), *(plain.anchors if plain else ())]
        judged = evaluate.with_verdicts(source.spark, gathered, rows, anchors)
        chosen = cache.keep(judged.where(takes(plan.selection)))
        told = overview.overview(chosen) if with_overview else None
        strays = partial(evaluate.strays, source, gathered, frames, rows)
        judgement = evaluate.sum_up(source, cache, gathered, frames, chosen, strays)
        gathered.refuse_moved(source.cluster)
        if ledger_path is not None:
            source.say("writing the ledger")
            # There was no ledger at the start. One that is there now comes from an attempt that was repeated.
            table = parquet.ledger_rows(source.names, chosen, frames, judgement.stray_entries)
            (delta if ledger_format is LedgerFormat.DELTA else parquet).write(table, ledger_path)
        if plain is not None:
            judgement = replace(judgement, counted=judgement.counted + plain.counted)
        return replace(judgement.report(source.names, gathered, plan.selection), overview=told)
