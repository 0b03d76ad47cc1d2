"""One audit by Spark: of everything that the topics hold, or a step of a ledger that is continued."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Ends
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.spark.incremental.steps import Increments
from txbridge_audit.engines.spark.incremental.store import positions_before_spark
from txbridge_audit.engines.spark.judge import evaluate, ledger, loss_evidence, overview
from txbridge_audit.engines.spark.judge.fast_path import split
from txbridge_audit.engines.spark.ledger import delta, parquet
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.gather import gather
from txbridge_audit.engines.spark.read.kafka_source import AuditSource
from txbridge_audit.engines.spark.read.selection import takes
from txbridge_audit.engines.spark.read.spark_session import Progress, elections, spark_session
from txbridge_audit.errors import ElectionError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.report.formats import LedgerFormat
from txbridge_audit.report.model import AuditReport

#: Number of half messages below which our own Spark is started for a short run, not for high speed. Offsets are counted
#: instead of messages. That is exact enough for this choice, and no result depends on it.
_SMALL = 600_000
#: Number of times in all that an audit is made while leaders change. A rolling restart of three brokers changes each
#: leader twice.
_TRIES = 4

_T = TypeVar("_T")


def spark_audit(
    cluster: AuditedCluster,
    settings: KafkaSettings,
    names: Names,
    topics: Mapping[str, Sequence[TopicPartition]],
    plan: Plan,
    *,
    spark: SparkSession | None,
    ledger_path: str | None,
    continued: bool,
    ledger_format: LedgerFormat,
    with_overview: bool,
    progress: Progress,
    about_it: Callable[[AuditReport], AuditReport],
) -> AuditReport:
    """See `txbridge_audit.audit.run_audit`. `about_it` adds what is known when an audit ends."""
    read = positions_before_spark(ledger_path) if continued and ledger_path is not None else {}
    small, in_delta = is_small(cluster, topics[names.half], read), ledger_format is LedgerFormat.DELTA
    with spark_session(spark, progress, small=small, with_delta=in_delta) as session:
        if ledger_path is None and not with_overview and importlib.util.find_spec("pyarrow") is not None:
            # Only here: it loads pyarrow.
            from txbridge_audit.engines.spark import judging  # noqa: PLC0415

            topics_of = AuditedTopics(cluster, settings, names, topics, progress)
            return about_it(until_leaders_stay(session, progress, lambda: judging.audit(session, topics_of, plan)))
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
        report = about_it(report)
        if ledger_path is not None:
            parquet.write_summary(session, report.to_json(), ledger_path)
    return report


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
