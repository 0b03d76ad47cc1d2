"""The plain transactions, counted without the ledger, and the rows of all others. Nearly all are plain.

A plain transaction has a well-formed half message, one decision, and one outcome in OP that agrees with it. If it is
committed, it has one visible copy with the same content in its real topic. Nothing else mentions it. That is enough to
say `delivered` or `rolled_back`. For such a row no earlier rule of fates.py and no rule of violations.py or findings.py
holds, whatever the facts, the cuts and the limits are. Records of it that are gone only tell which rules could not
judge it. So plain transactions are counted here, from a few numbers each. Only the others go through the ledger and all
of its rules, which costs twenty times as much.

Id, group and topic are compared as text elsewhere, and here by a hash of 64 bits, as contents are everywhere.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.engines.spark.judge import fates, loss_evidence, mentions, reach
from txbridge_audit.engines.spark.judge.loss_evidence import Anchor
from txbridge_audit.engines.spark.judge.summary import Counts
from txbridge_audit.engines.spark.read.decode import COMMIT, ROLLBACK, position_of
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.frames import Frames, pack, unpack
from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.engines.spark.read.selection import takes_half
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.selection import AuditSelection

# One bit for each kind of record. Every record of a plain transaction sets one of the first six.
_HALF, _COMMIT, _ROLLBACK, _OP_COMMIT, _OP_ROLLBACK, _COPY = (1 << place for place in range(6))
#: Any other record.
_ODD = 1 << 6
#: Further bits: the decision answered a check; the transaction is selected.
_BY_CHECK, _TAKEN = 1 << 7, 1 << 8
#: Place of the bits for records that are gone (reach.py), above the others.
_LACKING = 16
_BESIDE = _BY_CHECK | _TAKEN

_DELIVERED = _HALF | _COMMIT | _OP_COMMIT | _COPY
_ROLLED_BACK = _HALF | _ROLLBACK | _OP_ROLLBACK
#: In place of coordinates that a record does not name; offsets are never negative.
_NOWHERE = -1
#: Columns: position of the decision in END, and the part of END that the delivering Kafka transaction has applied.
_TURN = ("decided", "since", "until")
#: Greatest number of coordinates of others that are sent to every task. When there are more, all transactions go
#: through the rules. Leaving out the plain ones saves little then.
_MANY = 500_000


@dataclass(frozen=True, slots=True)
class Split:
    """The plain transactions, summed up, and the rows of all others."""

    counted: Counts
    anchors: Sequence[Anchor]
    rest: Frames


def split(cache: FrameCache, names: Names, frames: Frames, facts: Facts, selection: AuditSelection) -> Split:
    """Separate the plain ones from the rest, unless the rest is more than _MANY."""
    topics = [fact.topic for fact in facts.topics]
    frames = dataclasses.replace(
        frames,
        # Each is read twice: to find the plain transactions, and for the rows of the others.
        copies=cache.keep(frames.copies),
        checks=cache.keep(frames.checks),
    )
    groups = cache.keep(_grouped(_summed(_told(names, frames, facts, selection))))
    sums = (
        groups.groupBy("at_partition", "story", "topic", "place")
        .agg(
            F.sum("n").alias("n"),
            *loss_evidence.oldest("op_at", "copy_at", "n"),
        )
        .join(F.broadcast(_names(cache.spark, topics)), "topic", "left")
        .collect()
    )
    number = sum(row.n for row in sums if row.story is None)
    if number > _MANY:
        return Split(Counts(), (), frames)
    rest = _rest(frames, F.broadcast(groups.where(F.col("story").isNull()).select("at_partition", "other_half")))
    # Most have a few records each.
    rest = unpack(cache.cut_off(pack(rest), 4 * number), rest)
    plain = [row for row in sums if row.story is not None]
    taken = [row for row in plain if row.story & _TAKEN]
    by_fate = {
        fates.DELIVERED: sum(row.n for row in taken if row.story & _COMMIT),
        fates.ROLLED_BACK: sum(row.n for row in taken if row.story & _ROLLBACK),
    }
    return Split(
        counted=dataclasses.replace(
            Counts(),
            fates={**Counts().fates, **by_fate},
            answered_by_check=sum(row.n for row in taken if row.story & _BY_CHECK),
            reach=_reach(taken),
        ),
        anchors=[
            Anchor(row.at_partition, row.name, row.place, one.op_commit, one.copy_at, one.records)
            for row in plain
            if row.story & _COMMIT
            for one in sorted({row.oldest, row.other, row.newest} - {None})
        ],
        rest=rest,
    )


def _reach(rows: Sequence[Row]) -> dict[str, int]:
    """Number of plain transactions that each rule judged, and could not judge (reach.tell)."""
    told: Counter[str] = Counter()
    for row in rows:
        commit = bool(row.story & _COMMIT)
        fate = fates.DELIVERED if commit else fates.ROLLED_BACK
        alike = reach.Alike(
            fate,
            None,
            visible=commit,
            committed=commit,
            recorded=True,
            decided=True,
            commit=commit,
            given_up=False,
            parked=False,
            stuck=False,
            several=False,
            incomplete=False,
            timed=False,
            lacking=row.story >> _LACKING,
        )
        told.update(reach.tell(alike, row.n))
    return dict(told)


def _told(names: Names, frames: Frames, facts: Facts, selection: AuditSelection) -> DataFrame:
    """One row of numbers per record, at the coordinates that it names.

    `bits` is its kind. Hashes and numbers must agree: `end` of half message and decision, `delivered` and `dated` of
    half message and copy, `place` (the partition) if the half message fixes it. The rest are offsets and positions.
    """
    taken = F.when(takes_half(selection), _TAKEN).otherwise(0)
    source, decision, outcome = F.col("source"), F.col("decision"), F.col("outcome")
    decided = F.when(source == "resume", _ODD).when(decision == COMMIT, _COMMIT).when(decision == ROLLBACK, _ROLLBACK)
    by_check = F.when(source == "check", _BY_CHECK).otherwise(0)
    recorded = F.when(outcome == "commit", _OP_COMMIT).when(outcome == "rollback", _OP_ROLLBACK)
    odd = F.lit(_ODD)
    here, asked = reach.lacking_of_birth(facts), reach.lacking_of_decision(facts, F.col("group"), F.col("stamp"))
    discards = frames.discards.withColumnRenamed("source_offset", "half")
    # Several messages have several copies, all to be examined. A message with a time of delivery may have come early.
    is_plain = F.col("fault").isNull() & F.col("parts").isNull() & F.col("deliver_at").isNull()
    tables = (
        _row(
            frames.halves,
            _with_lacking(F.when(is_plain, F.lit(_HALF).bitwiseOR(taken)).otherwise(_ODD), here),
            end=F.xxhash64("id", "group"),
            delivered=F.xxhash64("id", "real_topic", "content"),
            place=F.col("fixed_partition"),
            dated=F.col("dated"),
        ),
        _row(
            mentions.decisions(names, frames),
            _with_lacking(decided.otherwise(_ODD).bitwiseOR(by_check), asked),
            end=F.xxhash64("id", "group"),
            decided=position_of(F.col("end_at"), F.col("line")),
        ),
        _row(
            frames.outcomes,
            F.when(F.col("half").isNotNull(), recorded).otherwise(_ODD),
            op_at=F.col("op_at"),
            since=F.col("since"),
            until=F.col("until"),
        ),
        _row(
            frames.copies,
            F.when(F.col("id").isNotNull() & F.col("half").isNotNull(), _COPY).otherwise(_ODD),
            delivered=F.xxhash64("id", "topic", "content"),
            copy_at=F.col("copy_at"),
            place=F.col("copy_partition"),
            by_key=F.col("by_key"),
            dated=F.col("dated"),
            topic=F.xxhash64("topic"),
        ),
        _row(frames.parked, odd),
        _row(frames.checks, odd),
        _row(discards, odd),
        # An END that names a copy of a half message decides the first one: neither is plain.
        _row(discards.where(F.col("first").isNotNull()).drop("half").withColumnRenamed("first", "half"), odd),
    )
    return reduce(DataFrame.unionByName, tables)


def _with_lacking(bits: Column, lacking: Column | None) -> Column:
    return bits if lacking is None else bits.bitwiseOR(F.shiftleft(F.coalesce(lacking, F.lit(0)), _LACKING))


def _row(rows: DataFrame, bits: Column, **given: Column) -> DataFrame:
    """The rows as numbers only, which Spark aggregates in place, without an object for each row."""

    def number(name: str, of_type: str = "bigint") -> Column:
        return given.get(name, F.lit(None)).cast(of_type).alias(name)

    return rows.select(
        *_coordinates(),
        F.coalesce(bits, F.lit(_ODD)).cast("bigint").alias("bits"),
        *(number(name) for name in ("end", "delivered", "op_at", "copy_at", "topic", "dated", *_TURN)),
        *(number(name, "int") for name in ("place", "by_key")),
    )


def _coordinates() -> tuple[Column, Column]:
    nowhere = F.lit(_NOWHERE)
    return (
        F.coalesce("partition", nowhere).alias("at_partition"),
        F.coalesce("half", nowhere.cast("bigint")).alias("at_half"),
    )


def _summed(told: DataFrame) -> DataFrame:
    """A row per coordinates: `story` (the bits) if it is a plain one, else null, and the columns that are counted."""
    # Shuffled first. Otherwise Spark would aggregate before the shuffle, too, where hardly two rows belong together.
    summed = (
        told.repartition("at_partition", "at_half")
        .groupBy("at_partition", "at_half")
        .agg(
            F.count("*").alias("n"),
            F.bit_or("bits").alias("bits"),
            # 0 for two equal hashes.
            *(F.bit_xor(name).alias(name) for name in ("end", "delivered")),
            *(F.max(name).alias(name) for name in ("op_at", "copy_at", "topic", "place", *_TURN)),
            # The partition that the half message fixes, if it does, and that of the copy.
            F.min("place").alias("least_place"),
            F.count("place").alias("places"),
            F.max("by_key").alias("by_key"),
            # Timestamps of the half message and, if the worker gave it, of the copy.
            F.max("dated").alias("dated"),
            F.min("dated").alias("least_dated"),
        )
    )
    story = F.col("bits").bitwiseAND((1 << _LACKING) - 1).bitwiseAND(~_BESIDE)
    # There are as many records as bits, so each kind occurs once.
    delivered = (story == _DELIVERED) & (F.col("n") == _DELIVERED.bit_count()) & (F.col("delivered") == 0)
    delivered &= (F.col("place") == F.col("least_place")) & (F.col("by_key").isNull() | (F.col("places") > 1))
    delivered &= F.col("dated") == F.col("least_dated")
    # The delivering Kafka transaction has applied the decision, or OP does not state its part of END.
    delivered &= F.col("since").isNull() | F.col("decided").between(F.col("since"), F.col("until") - 1)
    rolled_back = (story == _ROLLED_BACK) & (F.col("n") == _ROLLED_BACK.bit_count())
    plain = (F.col("end") == 0) & (delivered | rolled_back)
    return summed.select(
        "at_partition",
        "at_half",
        F.when(plain, F.col("bits")).alias("story"),
        *("topic", "place", "op_at", "copy_at"),
    )


def _grouped(summed: DataFrame) -> DataFrame:
    """Plain transactions summed up, and the others one by one with their `other_half`."""
    plain = F.col("story").isNotNull()
    return summed.groupBy(
        "at_partition",
        F.when(~plain, F.col("at_half")).alias("other_half"),
        "story",
        *(F.when(plain, F.col(name)).alias(name) for name in ("topic", "place")),
        # Committed ones by OP record, so that a group has the records of an anchor. Hashing them is cheaper than
        # sorting.
        F.when(F.col("story").bitwiseAND(_COMMIT) != 0, F.col("op_at")).alias("op_at"),
    ).agg(F.count("*").alias("n"), F.min("copy_at").alias("copy_at"))


def _names(spark: SparkSession, topics: Sequence[str]) -> DataFrame:
    """The topics by their hashes."""
    rows = ({"name": topic} for topic in topics)
    return frame(spark, rows, "name: string").select("name", F.xxhash64("name").alias("topic"))


def _rest(frames: Frames, others: DataFrame) -> Frames:
    """The rows of these coordinates. Unreadable ENDs and discards are few, and all of them stay."""
    others = others.withColumnRenamed("at_partition", "other_partition")
    partition, half = _coordinates()

    def of(rows: DataFrame) -> DataFrame:
        here = (partition == F.col("other_partition")) & (half == F.col("other_half"))
        return rows.join(others, here, "left_semi")

    return dataclasses.replace(
        frames,
        halves=of(frames.halves),
        entries=of(frames.entries),
        outcomes=of(frames.outcomes),
        parked=of(frames.parked),
        copies=of(frames.copies),
        checks=of(frames.checks),
    )
