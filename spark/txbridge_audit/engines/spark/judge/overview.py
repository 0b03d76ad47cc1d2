"""The summaries that the page shows beside the verdict: a few hundred numbers, computed by Spark."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import short_id
from txbridge_audit.engines.spark.judge import fates
from txbridge_audit.engines.spark.judge.derived import delivery_latency
from txbridge_audit.report.overview import QUANTILES, AuditOverview, GroupOverview, Latency, Waiting

#: Points of the plot over time: as many as a phone can show.
_INTERVALS = 60
#: Rows of the tables: as many as a person can act on. The ledger has all of them.
_GROUPS, _OLDEST = 20, 20
#: The relative error of the quantiles is 1 divided by this.
_ACCURACY = 1_000


def overview(judged: DataFrame) -> AuditOverview:
    """Sum up the judged ledger (persisted)."""
    rows = judged.where("valid")
    interval, over_time = _over_time(rows)
    return AuditOverview(
        interval=interval,
        over_time=over_time,
        prepare_to_decision=_latency(rows, F.col("winner.stamp") - F.col("born")),
        decision_to_delivery=_latency(rows, delivery_latency()),
        groups=_groups(rows),
        oldest_pending=_oldest(rows),
    )


def _over_time(rows: DataFrame) -> tuple[int, dict[int, dict[str, int]]]:
    edges = rows.agg(F.min("born").alias("first"), F.max("born").alias("last")).first()
    if edges is None or edges.first is None:
        return 1, {}
    interval = (edges["last"] - edges["first"]) // _INTERVALS + 1
    number = F.floor((F.col("born") - edges["first"]) / interval).alias("number")
    counted: dict[int, dict[str, int]] = {}
    for row in rows.groupBy(number, "fate").agg(F.count("*").alias("n")).collect():
        counted.setdefault(edges["first"] + row.number * interval, {})[row.fate] = row.n
    return interval, dict(sorted(counted.items()))


def _latency(rows: DataFrame, taken: Column) -> Latency | None:
    # The append times may come from two brokers, whose clocks may make a short latency look negative.
    known = rows.select(F.greatest(taken, F.lit(0)).alias("ms")).where(taken.isNotNull())
    sums = known.agg(
        F.percentile_approx("ms", list(QUANTILES), _ACCURACY).alias("quantiles"),
        F.max("ms").alias("most"),
    ).first()
    if sums is None or sums.most is None:
        return None
    power = F.ceil(F.log2(F.col("ms") + 1)).cast("int").alias("power")
    by_power = {row.power: row.n for row in known.groupBy(power).agg(F.count("*").alias("n")).collect()}
    return Latency(dict(sorted(by_power.items())), tuple(sums.quantiles), sums.most)


def _groups(rows: DataFrame) -> tuple[GroupOverview, ...]:
    chosen = (
        rows.groupBy("group")
        .agg(
            F.count("*").alias("transactions"),
            F.count_if(F.col("checks_sent") > 0).alias("checked"),
            F.sum("checks_sent").alias("checks"),
            F.count_if(F.col("winner.source") == "check").alias("answered"),
            F.count_if(F.col("fate") == fates.DISCARDED).alias("discarded"),
        )
        .orderBy(F.desc("checks"), "group")
        .limit(_GROUPS)
        .collect()
    )
    return tuple(GroupOverview(r.group, r.transactions, r.checked, r.checks, r.answered, r.discarded) for r in chosen)


def _oldest(rows: DataFrame) -> tuple[Waiting, ...]:
    chosen = (
        rows.where(F.col("fate") == fates.PENDING)
        .select("id", "group", "real_topic", "partition", "half", "pending_state", "born", "checks_sent")
        .orderBy("born", "partition", "half")
        .limit(_OLDEST)
        .collect()
    )
    return tuple(
        Waiting(short_id(r.id), r.group, r.real_topic, r.partition, r.half, r.pending_state, r.born, r.checks_sent)
        for r in chosen
    )
