"""The sums and lists of the judged ledger: all rows are counted, the first of each kind are listed with coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names, short_id
from txbridge_audit.engines.spark.judge import fates, findings, reach, violations
from txbridge_audit.engines.spark.read.decode import ROLLBACK
from txbridge_audit.engines.spark.read.once import once
from txbridge_audit.report.entry import Entry, Place

#: Kinds of violations: wrong fates, PHANTOM (of a visible record without a transaction), and those beside the fate.
VIOLATIONS = (*fates.WRONG_FATES, fates.PHANTOM, *violations.KINDS)

#: Entries listed of each kind (the counts are exact): enough to act on, little enough for any terminal or mail.
VIOLATIONS_LISTED, FINDINGS_LISTED = 10_000, 1_000


_T = TypeVar("_T")

#: Half partition and offset. The offset is None for records that name no half message.
Key = tuple[int, int | None]

#: Columns that `counts` needs.
COUNTED = (
    *("fate", "pending_state", "valid", "present", "copies", "winner", "lacking", "parked", "abandoned_at"),
    *("op_commit", "op_rollback", "op_discard", "op_abandon"),
    *("strays", "bad_ends", "bad_ops", "breaches", "findings", "several", "incomplete", "deliver_at"),
)

#: Kinds that a row of the ledger may have beside its fate, violations and findings, in the order of their rules.
_BESIDE = (*violations.KINDS, *(rule.kind for rule in findings.RULES))


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over the ledger."""

    fates: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(fates.FATES, 0))
    pending_states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(fates.PENDING_STATES, 0))
    #: Kinds that occur beside the fate.
    kinds: Mapping[str, int] = field(default_factory=dict)
    delivered_more_than_once: int = 0
    rolled_back_but_visible: int = 0
    answered_by_check: int = 0
    #: Copies below the earlier cut that match no half message.
    strays: int = 0
    #: Half messages, ENDs and OP records that cannot be read.
    malformed: int = 0
    bad_ops: int = 0
    #: Number of transactions that each rule judged, and could not judge (reach.tell).
    reach: Mapping[str, int] = field(default_factory=dict)

    @property
    def transactions(self) -> int:
        return sum(self.fates.values())

    def __add__(self, other: Counts) -> Counts:
        return self._with(other, 1)

    def __sub__(self, other: Counts) -> Counts:
        return self._with(other, -1)

    def _with(self, other: Counts, sign: int) -> Counts:
        def each(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
            return {name: ours.get(name, 0) + sign * theirs.get(name, 0) for name in {**ours, **theirs}}

        kinds = each(self.kinds, other.kinds)
        return Counts(
            each(self.fates, other.fates),
            each(self.pending_states, other.pending_states),
            {kind: kinds[kind] for kind in _BESIDE if kinds.get(kind)},
            self.delivered_more_than_once + sign * other.delivered_more_than_once,
            self.rolled_back_but_visible + sign * other.rolled_back_but_visible,
            self.answered_by_check + sign * other.answered_by_check,
            self.strays + sign * other.strays,
            self.malformed + sign * other.malformed,
            self.bad_ops + sign * other.bad_ops,
            each(self.reach, other.reach),
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """A violation or finding of one row of the ledger."""

    key: Key
    #: Whether the row only changes when a new record names it (incremental/closing.py).
    closed: bool
    entry: Entry


def counts(judged: DataFrame) -> Counts:
    """Sums over the judged ledger, in one job. Its rows have at least the columns COUNTED."""
    alike = reach.group_columns()
    rows = judged.withColumns(alike).groupBy(*_groups()).agg(*_sums()).collect()
    by_fate = dict.fromkeys(fates.FATES, 0)
    told: Counter[str] = Counter()
    states = dict.fromkeys(fates.PENDING_STATES, 0)
    for row in rows:
        if row.fate is not None:
            by_fate[row.fate] += row.n
            told.update(reach.tell(reach.Alike(*(row[name] for name in reach.ALIKE)), row.n))
        if row.pending_state is not None:
            states[row.pending_state] += row.n

    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    return Counts(
        fates=by_fate,
        pending_states=states,
        kinds={kind: total(kind) for kind in _BESIDE if total(kind)},
        delivered_more_than_once=total("doubled"),
        rolled_back_but_visible=total("leaked"),
        answered_by_check=total("by_check"),
        strays=total("strays"),
        malformed=total("malformed"),
        bad_ops=total("bad_ops"),
        reach=dict(told),
    )


@once
def _groups() -> tuple[Column, ...]:
    return tuple(map(F.col, ("fate", "pending_state", "several", "incomplete", "lacking", *reach.group_columns())))


@once
def _sums() -> tuple[Column, ...]:
    rolled_back = F.col("winner.decision").eqNullSafe(ROLLBACK) | (
        F.col("op_rollback").isNotNull() & F.col("op_commit").isNull()
    )
    valid = F.col("valid")
    return (
        F.count("*").alias("n"),
        F.count_if(valid & (F.col("copies") > 1)).alias("doubled"),
        F.count_if(valid & rolled_back & (F.col("copies") > 0)).alias("leaked"),
        F.count_if(valid & (F.col("winner.source") == "check")).alias("by_check"),
        F.sum("strays").alias("strays"),
        (F.sum("bad_ends") + F.count_if(F.col("present") & ~valid)).alias("malformed"),
        F.sum("bad_ops").alias("bad_ops"),
        *(F.count_if(F.array_contains("breaches", kind)).alias(kind) for kind in violations.KINDS),
        *(F.count_if(F.array_contains("findings", rule.kind)).alias(rule.kind) for rule in findings.RULES),
    )


def listed(names: Names, judged: DataFrame, counted: Counts) -> list[Listed]:
    """Violations and findings of the ledger's rows, the first of each kind by half coordinates.

    In a full audit, whose judged ledger has no `closed`, no row is closed.
    """
    fatal = [kind for kind in VIOLATIONS if counted.fates.get(kind)]
    if not fatal and not counted.kinds:
        return []
    wrong = F.coalesce(F.col("fate").isin(*fatal), F.lit(False))
    kinds = F.concat("breaches", "findings", F.when(wrong, F.array("fate")).otherwise(F.array()))
    order = Window.partitionBy("kind").orderBy("partition", "half")
    with_closed = judged if "closed" in judged.columns else judged.withColumn("closed", F.lit(False))
    rows = (
        with_closed.withColumn("kind", F.explode(kinds))
        .withColumn("number", F.row_number().over(order))
        .where(F.col("number") <= _most())
        .collect()
    )
    return in_order(Listed((row.partition, row.half), row.closed, _entry(names, row)) for row in rows)


def in_order(many: Iterable[Listed]) -> list[Listed]:
    """The first of each kind by half coordinates, in the order of kinds."""
    places = {kind: place for place, kind in enumerate((*VIOLATIONS, *findings.SAYS))}

    def order(one: Listed) -> tuple[int, int, int]:
        partition, half = one.key
        return places[one.entry.kind], partition, -1 if half is None else half

    return first_of_each(sorted(many, key=order), lambda one: one.entry.kind)


def first_of_each(many: Iterable[_T], kind_of: Callable[[_T], str]) -> list[_T]:
    """The first of each kind, as many as are listed. The kinds are in the order in which they occur."""
    kept: dict[str, list[_T]] = {}
    for one in many:
        kind = kind_of(one)
        of_kind = kept.setdefault(kind, [])
        if len(of_kind) < (VIOLATIONS_LISTED if kind in VIOLATIONS else FINDINGS_LISTED):
            of_kind.append(one)
    return [one for of_kind in kept.values() for one in of_kind]


def strays(names: Names, labelled: DataFrame) -> tuple[dict[str, int], list[Entry]]:
    """Visible records that match no half message: the number of each kind, and the first ones, in one job."""
    of_kind = Window.partitionBy("kind")
    rows = (
        labelled.withColumn("n", F.count("*").over(of_kind))
        .withColumn("number", F.row_number().over(of_kind.orderBy("topic", "copy_partition", "copy_at")))
        .where(F.col("number") <= _most())
        .collect()
    )
    return {row.kind: row.n for row in rows}, [
        Entry(
            row.kind,
            findings.SAYS.get(row.kind, "visible without a half message"),
            transaction=None if row.id is None else short_id(row.id),
            real_topic=row.topic,
            evidence=(
                Place("copy", row.topic, row.copy_partition, row.copy_at),
                *(() if row.half is None else (Place("claims", names.half, row.partition, row.half),)),
            ),
        )
        for row in sorted(rows, key=lambda row: (row.kind, row.number))
    ]


def _most() -> Column:
    """The number of entries that are listed of a row's kind."""
    return F.when(F.col("kind").isin(*VIOLATIONS), VIOLATIONS_LISTED).otherwise(FINDINGS_LISTED)


def malformed(names: Names, records: DataFrame) -> tuple[dict[str, int], list[Entry]]:
    """Malformed records (findings.malformed, persisted): the number of each kind, and the first ones."""
    rows = records.orderBy("source_topic", "partition", "source_offset").limit(FINDINGS_LISTED).collect()
    # A record of the discard topic that no worker wrote may name any topic: its role is "record".
    roles = {names.half: "half", names.end: "end"}
    counted = {row["kind"]: row["count"] for row in records.groupBy("kind").count().collect()}
    return counted, [
        Entry(
            row.kind,
            row.says,
            evidence=(
                Place(roles.get(row.source_topic, "record"), row.source_topic, row.partition, row.source_offset),
                *_places("discard", names.discard, [row.set_aside] if row.set_aside else []),
            ),
        )
        for row in rows
    ]


def unreadable(names: Names, outcomes: DataFrame) -> list[Entry]:
    """The first OP records that cannot be read."""
    chosen = outcomes.where(F.col("fault").isNotNull()).orderBy("partition", "op_at").limit(FINDINGS_LISTED)
    return [
        Entry(findings.UNREADABLE_OP, row.fault, evidence=(Place("op", names.op, row.partition, row.op_at),))
        for row in chosen.collect()
    ]


def _entry(names: Names, row: Row) -> Entry:
    # The parked entry describes a half message that is gone.
    own = row.last_parked if row.kind == violations.EXPIRED else row
    return Entry(
        row.kind,
        fates.RULES[row.rule].says if row.kind == row.fate else (violations.SAYS | findings.SAYS)[row.kind],
        transaction=None if own.id is None else short_id(own.id),
        group=own.group,
        real_topic=row.real_topic,
        evidence=tuple(_evidence(names, row)),
    )


def _evidence(names: Names, row: Row) -> Iterable[Place]:
    """Every record that the row has coordinates of. Of refused ENDs it is the one that the kind is about."""
    if row.present:
        yield Place("half", names.half, row.partition, row.half)
    if row.kind == violations.EXPIRED:
        yield Place("gone", names.half, row.partition, row.half)
    refused = {
        "LATE": row.late_at,
        "REPEAT": row.last_decision_at,
        "WRONG_TRANSACTION_ID": row.wrong_id_at,
        "WRONG_GROUP": row.wrong_group_at,
        "NO_HALF_MESSAGE": row.named_at,
    }
    deciding = (entry.end_at for entry in (row.winner, row.contrary) if entry is not None)
    ends = {*deciding, refused.get(row.kind), row.abandoned_at} - {None}
    yield from (Place("end", names.end, row.partition, end) for end in sorted(ends))
    outcomes = (at for at in (row.op_commit, row.op_rollback, row.op_discard, row.op_abandon) if at is not None)
    yield from (Place("op", names.op, row.partition, at) for at in sorted(outcomes))
    yield from _places("discard", names.discard, row.discarded_at or [])
    if row.kind in {violations.STUCK, violations.EXPIRED, violations.OVERDUE} and row.last_parked is not None:
        yield Place("parked", names.offset, row.partition, row.last_parked["at"])
    if row.kind == violations.CHECKED_AFTER_DECISION:
        yield Place("check", row.checked.topic, row.checked.partition, row.checked.offset)
    copies = {(place.topic, place.partition, place.offset) for place in (*row.copied_to, *row.foreign_at)}
    if row.kind == violations.ALTERED:
        copies.add((row.altered_at.topic, row.altered_at.partition, row.altered_at.offset))
    if row.kind == violations.MISPLACED:
        copies.add((row.misplaced_at.topic, row.misplaced_at.partition, row.misplaced_at.offset))
    if row.kind == violations.OUT_OF_ORDER:
        copies.add((row.out_of_order_at.topic, row.out_of_order_at.partition, row.out_of_order_at.offset))
    yield from (Place("copy", *place) for place in sorted(copies))


def _places(role: str, topic: str, places: Iterable[Any]) -> Iterable[Place]:
    return (Place(role, topic, place.partition, place.offset) for place in places)
