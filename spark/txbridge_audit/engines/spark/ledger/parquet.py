"""The ledger as Parquet: one row per transaction with its fate and its history, for any SQL engine (docs/audit.md).

Violations whose half message HALF does not hold (PHANTOM, EXPIRED) have rows without a fate.

No row holds a whole transaction id, because the id is the right to decide an undecided transaction. `transaction` is
the part of it that logs show. `id_sha256` finds the row of a known id.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names, short_id
from txbridge_audit.engines.spark.judge import fates, violations
from txbridge_audit.engines.spark.judge.derived import delivery_latency
from txbridge_audit.engines.spark.judge.mentions import KEY, decisions
from txbridge_audit.engines.spark.read.decode import COMMIT, ROLLBACK, UNKNOWN
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.formats import ledger_exists

#: Number of decisions, copies and discards of one transaction that are kept: the first ones. A client that repeats a
#: decision a million times must not make a row that no executor can hold. `entries` and `copies` count all of them.
KEPT = 100
#: The last time (ms) that every reader takes as a timestamp (the year 9999). A parked entry may state any number.
_LAST = 253_402_300_799_999
#: Folder beside the data. Readers of Parquet ignore names that begin with an underscore.
SUMMARY = "_audit"


def refuse_existing(spark: SparkSession, path: str) -> None:
    """Raise CouldNotAuditError when there is a ledger at the path already: it is not overwritten."""
    try:
        spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() in {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"}:
            return
        raise
    raise ledger_exists(path)


def write(rows: DataFrame, path: str) -> None:
    """Write the rows, partitioned by the day of birth (UTC) and the real topic. Existing files are overwritten."""
    rows.write.mode("overwrite").partitionBy("day", "real_topic").parquet(path)


def ledger_rows(names: Names, judged: DataFrame, frames: Frames, entries: Collection[Entry]) -> DataFrame:
    """The rows of the ledger: one for each transaction of the judged ledger.

    Violations without a half message have rows, too: those of EXPIRED are in `judged`, those of PHANTOM in `entries`.
    """
    rows = judged.where("valid")
    for details in (_ends(names, frames), _copies(frames), _held(frames), _discards(frames)):
        rows = rows.join(details, KEY, "left")
    rows = rows.select(*_columns())
    for beside in (_expired(judged, frames), _phantoms(judged.sparkSession, entries)):
        rows = rows.unionByName(beside, allowMissingColumns=True)
    return rows


def write_summary(spark: SparkSession, text: str, path: str) -> None:
    """Write the JSON form of the report beside the ledger."""
    line = frame(spark, [{"value": text.replace("\n", " ")}], "value: string")
    line.coalesce(1).write.mode("overwrite").text(f"{path}/{SUMMARY}")


def _expired(judged: DataFrame, frames: Frames) -> DataFrame:
    """Rows of messages that HALF no longer holds although they are open, as their parked entries tell."""
    told = frames.parked.groupBy(*KEY).agg(
        *(F.max_by(name, "at").alias(f"parked_{name}") for name in ("topic", "born"))
    )
    rows = judged.where(F.array_contains("breaches", violations.EXPIRED)).join(told, KEY, "left")
    own, born = (
        F.col("last_parked"),
        F.timestamp_millis(F.when(F.col("parked_born").between(0, _LAST), F.col("parked_born"))),
    )
    return rows.select(
        *(F.col(name) for name in KEY),
        *_named(own["id"]),
        own["group"].alias("group"),
        born.alias("prepared_at"),
        F.col("breaches").alias("violations"),
        "findings",
        "checks_sent",
        F.to_date(born).alias("day"),
        F.col("parked_topic").alias("real_topic"),
    )


def _phantoms(spark: SparkSession, entries: Collection[Entry]) -> DataFrame:
    """Rows of visible records without a half message, with the coordinates that they claim."""
    rows = []
    for entry in entries:
        if entry.kind == fates.PHANTOM:
            by_role = {place.role: place for place in entry.evidence}
            claimed, copy = by_role.get("claims"), by_role["copy"]
            rows.append(
                {
                    "partition": claimed and claimed.partition,
                    "half": claimed and claimed.offset,
                    "transaction": entry.transaction,
                    "violations": [entry.kind],
                    "findings": [],
                    "copies": 1,
                    "delivered": [{"topic": copy.topic, "partition": copy.partition, "offset": copy.offset}],
                    "real_topic": copy.topic,
                }
            )
    return frame(
        spark,
        rows,
        "partition: int, half: bigint, transaction: string, violations: array<string>, findings: array<string>, "
        "copies: bigint, delivered: array<struct<topic: string, partition: int, offset: bigint>>, real_topic: string",
    )


def _named(identity: Column) -> tuple[Column, Column]:
    """The columns that may be shown instead of a transaction id."""
    shown = F.substring(identity, 1, len(short_id("0" * 32))).alias("transaction")
    return shown, F.sha2(identity.cast("binary"), 256).alias("id_sha256")


def _or_none(of_many: Column) -> Column:
    """The array, or an empty one instead of null."""
    return F.coalesce(of_many, F.array())


def _time(ms: str) -> Column:
    return F.timestamp_millis(F.col(ms))


def _columns() -> list[Column]:
    winner = F.col("winner")
    return [
        *(F.col(name) for name in KEY),
        *_named(F.col("id")),
        F.col("group"),
        F.col("fixed_partition").alias("real_partition"),
        _time("born").alias("prepared_at"),
        F.col("fate"),
        F.col("pending_state"),
        F.col("breaches").alias("violations"),
        F.col("findings"),
        F.when(winner["decision"] == COMMIT, "commit")
        .when(winner["decision"] == ROLLBACK, "rollback")
        .alias("decision"),
        winner["source"].alias("decided_by"),
        F.timestamp_millis(winner["stamp"]).alias("decided_at"),
        winner["end_at"].alias("decided_end"),
        (winner["stamp"] - F.col("born")).alias("prepare_to_decision_ms"),
        _time("committed_at").alias("delivered_at"),
        delivery_latency().alias("decision_to_delivery_ms"),
        F.col("entries"),
        _ruled(winner).alias("decisions"),
        F.col("checks_sent"),
        F.col("held_since"),
        (F.col("committed_at") - F.col("held_stamp")).alias("held_ms"),
        F.col("held_why"),
        F.col("copies"),
        _or_none(
            F.transform(
                F.filter("delivered", lambda copy: copy["id"] == F.col("id")),
                lambda copy: F.struct(copy["topic"], copy["partition"], copy["offset"]),
            ),
        ).alias("delivered"),
        *(F.col(name).alias(f"{name}_offset") for name in ("op_commit", "op_rollback", "op_discard", "op_abandon")),
        _or_none(F.col("discard_records")).alias("discard_records"),
        F.col("resumed_at").alias("resumed_end"),
        F.to_date(_time("born")).alias("day"),
        F.col("real_topic"),
    ]


def _ruled(winner: Column) -> Column:
    """The decisions, each with its ruling: `decided`, `unknown`, `resume`, `abandon` or a refusal of the protocol."""

    def rule(end: Column) -> Column:
        place, won = F.struct(end["end"], end["line"]), F.struct(winner["end_at"], winner["line"])
        return (
            F.when(~end["id"].eqNullSafe(F.col("id")), "WRONG_TRANSACTION_ID")
            .when(~end["group"].eqNullSafe(F.col("group")), "WRONG_GROUP")
            .when(end["source"].isin("resume", "abandon"), end["source"])
            .when(end["decision"] == UNKNOWN, "unknown")
            .when(winner.isNull() | (place < won), "LATE")
            .when(place == won, "decided")
            .when(end["decision"] == winner["decision"], "REPEAT")
            .otherwise("CONTRADICTION")
        )

    told = ("end", "line", "at", "decision", "source", "client", "group", "check", "remark")

    def row(end: Column) -> Column:
        return F.struct(*(end[name].alias(name) for name in told), rule(end).alias("ruling"))

    return _or_none(F.transform("ends_seen", row))


def _first_ones(rows: DataFrame, order: list[str], what: Column, name: str) -> DataFrame:
    """`what` of the first KEPT rows of each transaction, as an array in the given order."""
    numbered = rows.withColumn("number", F.row_number().over(Window.partitionBy(*KEY).orderBy(*order)))
    # The struct begins with the fields of `order`, so sorting restores that order.
    return numbered.where(F.col("number") <= KEPT).groupBy(*KEY).agg(F.sort_array(F.collect_list(what)).alias(name))


def _ends(names: Names, frames: Frames) -> DataFrame:
    remark = F.coalesce(F.try_url_decode(F.replace("remark", F.lit("+"), F.lit("%2B"))), "remark")
    end = F.struct(
        F.col("end_at").alias("end"),
        "line",
        _time("stamp").alias("at"),
        *("decision", "source", "client", "id", "group"),
        F.col("checks").alias("check"),
        remark.alias("remark"),
    )
    return _first_ones(decisions(names, frames), ["end_at", "line"], end, "ends_seen")


def _copies(frames: Frames) -> DataFrame:
    place = F.struct("topic", F.col("copy_partition").alias("partition"), F.col("copy_at").alias("offset"), "id")
    return _first_ones(frames.copies, ["topic", "copy_partition", "copy_at"], place, "delivered")


def _held(frames: Frames) -> DataFrame:
    """The time since which a decided message is, or was, held, and why. Compaction may have removed its first entry."""
    held = frames.parked.where(F.col("state") == "held")
    return held.groupBy(*KEY).agg(
        F.min("stamp").alias("held_stamp"),
        F.timestamp_millis(F.min("stamp")).alias("held_since"),
        F.max_by("error", "at").alias("held_why"),
    )


def _discards(frames: Frames) -> DataFrame:
    record = F.struct(
        _time("stamp").alias("at"),
        F.col("at_partition").alias("partition"),
        F.col("at_offset").alias("offset"),
        "reason",
        F.col("discard_end").alias("end"),
        "checks",
    )
    rows = frames.discards.where(~F.col("malformed")).withColumnRenamed("source_offset", "half")
    return _first_ones(rows, ["stamp", "at_partition", "at_offset"], record, "discard_records")
