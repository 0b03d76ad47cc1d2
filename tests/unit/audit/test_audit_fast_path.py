"""The fast path that separates plain transactions from the others: its verdict must be that of all rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from txbridge_audit.engines.spark.judge import fast_path, findings, ledger, loss_evidence, reach, summary
from txbridge_audit.engines.spark.judge import fates as verdicts
from txbridge_audit.engines.spark.judge.fast_path import Split, split
from txbridge_audit.engines.spark.judge.loss_evidence import Anchor
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.judge.facts import Facts, HalfFacts, RealTopicFacts
from txbridge_audit.judge.selection import AuditSelection

from tests.support.audit_cases import plant
from tests.support.audit_memory import BORN, Memory
from tests.support.audit_terms import COMMIT, FORWARDED, ORDERS, PASSED, PLAIN, ROLLBACK, Half

# Every gate checks that an audit with the fast path finds the planted violations (tests/integration/test_audit.py).
pytestmark = pytest.mark.long


def told(spark: SparkSession, log: Memory, selection: AuditSelection | None = None) -> Split:
    facts = log.facts(topics=[RealTopicFacts(ORDERS), RealTopicFacts(FORWARDED)])
    return split(FrameCache(spark), log.names, log.frames(spark), facts, selection or AuditSelection())


def judged(spark: SparkSession, log: Memory, frames: Frames, facts: Facts) -> tuple[DataFrame, list[Anchor]]:
    rows = ledger.build(spark, log.names, frames, facts)
    anchors = loss_evidence.anchors(rows)
    return rows, anchors


def named(split: Split) -> set[tuple[int, int]]:
    return {(row.partition, row.half) for row in split.rest.halves.collect()}


def test_all_cases_are_judged_as_by_all_rules(spark: SparkSession) -> None:
    """The fast path leaves every oddity to the rules. The rules find nothing about transactions that it leaves out."""
    log = Memory()
    plant(log)
    facts = log.facts()
    whole, anchors = judged(spark, log, log.frames(spark), facts)
    found = told(spark, log)
    rest, others = judged(spark, log, found.rest, facts)
    together = [*others, *found.anchors]

    def rows(frame: DataFrame, known: list[Anchor]) -> dict[tuple[int | None, int | None], dict[str, object]]:
        with_proof = loss_evidence.add(spark, frame, (), known)
        told = findings.find(verdicts.assign(with_proof)).collect()
        # The anchors of both ways may prove a little more.
        return {(row.partition, row.half): row.asDict(recursive=True) | {"proof_above": None} for row in told}

    everything, left = rows(whole, anchors), rows(rest, together)
    assert left == {key: everything[key] for key in left}
    plain = [row for key, row in everything.items() if key not in left]
    assert plain
    assert not any(row["breaches"] or row["findings"] or row["strays"] for row in plain)
    fates = {fate: sum(row["fate"] == fate for row in plain) for fate in ("delivered", "rolled_back")}
    assert fates == {fate: count for fate, count in found.counted.fates.items() if count}
    assert sum(fates.values()) == len(plain)


def test_plain_is_one_record_of_each_that_agree(spark: SparkSession) -> None:
    log = Memory()
    delivered, rolled_back = log.half(), log.half(partition=PASSED)
    log.end(delivered, COMMIT)
    log.deliver(delivered)
    log.end(rolled_back, ROLLBACK, source="check")
    log.transaction(log.op("rollback", rolled_back))
    found = told(spark, log)
    assert named(found) == set()
    assert found.counted.transactions == 2
    assert (found.counted.fates["delivered"], found.counted.fates["rolled_back"]) == (1, 1)
    assert found.counted.answered_by_check == 1
    assert found.anchors == [Anchor(PLAIN, ORDERS, 0, 0, 0)]


def _other_id(log: Memory, half: Half) -> None:
    log.transaction(log.copy(Half(half.partition, half.offset, "F" * 32, half.group, half.topic)))


#: Oddities that leave a delivered transaction to the rules.
ODDITIES: dict[str, Callable[[Memory, Half], object]] = {
    "a second copy": lambda log, half: log.transaction(log.copy(half)),
    "a forwarded copy": lambda log, half: log.transaction(
        log.copy(Half(half.partition, half.offset, half.id, half.group, FORWARDED))
    ),
    "a copy with another id": _other_id,
    "a repeated decision": lambda log, half: log.end(half, COMMIT),
    "a contrary decision": lambda log, half: log.end(half, ROLLBACK),
    "an unknown decision": lambda log, half: log.end(half, 0),
    "a resume": lambda log, half: log.end(half, 0, source="resume"),
    "a second outcome": lambda log, half: log.transaction(log.op("commit", half)),
    "another outcome": lambda log, half: log.transaction(log.op("rollback", half)),
    "a discard": lambda log, half: log.transaction(log.discard(half)),
    "a parked entry": lambda log, half: log.transaction(log.parked(half, "pending")),
    "a tombstone": lambda log, half: log.transaction(log.parked(half, None)),
}


def test_any_other_record_leaves_it_to_the_rules(spark: SparkSession) -> None:
    log = Memory()
    halves = {name: log.half() for name in ODDITIES} | {"none": log.half()}
    for half in halves.values():
        log.end(half, COMMIT)
        log.deliver(half)
    for name, oddity in ODDITIES.items():
        oddity(log, halves[name])
    found = told(spark, log)
    assert named(found) == {(PLAIN, half.offset) for name, half in halves.items() if name != "none"}
    assert found.counted.transactions == 1
    # All their records are left to the rules, and no others.
    assert {row.half for row in found.rest.entries.collect()} == {half for _, half in named(found)}
    assert {row.half for row in found.rest.copies.collect()} == {half for _, half in named(found)}


def test_lacking_or_different_records_leave_it_to_the_rules(spark: SparkSession) -> None:
    log = Memory()
    undecided, unread, unrecorded, invisible, leaked, stranger, altered, wrong = (log.half() for _ in range(8))
    log.end(unread, COMMIT)
    log.end(unrecorded, COMMIT)
    log.transaction(log.copy(unrecorded))
    log.end(invisible, COMMIT)
    log.transaction(log.op("commit", invisible))
    log.end(leaked, ROLLBACK)
    log.deliver(leaked)
    # The right record with one wrong field.
    log.end(Half(PLAIN, stranger.offset, "F" * 32, stranger.group, ORDERS), COMMIT)
    log.deliver(stranger)
    log.end(altered, COMMIT)
    copy = log.copy(altered)
    copy.headers.append(("the user's", b"more"))
    log.transaction(copy, log.op("commit", altered))
    log.end(wrong, COMMIT)
    log.deliver(Half(PLAIN, wrong.offset, wrong.id, wrong.group, FORWARDED))
    found = told(spark, log)
    halves = (undecided, unread, unrecorded, invisible, leaked, stranger, altered, wrong)
    assert named(found) == {(PLAIN, half.offset) for half in halves}
    assert (found.counted.transactions, list(found.anchors)) == (0, [])


def test_where_few_are_plain_all_go_through_the_rules(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_MANY", 1)
    log = Memory()
    half, one, another = log.half(), log.half(), log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    found = told(spark, log)
    assert named(found) == {(PLAIN, half.offset), (PLAIN, one.offset), (PLAIN, another.offset)}
    assert (found.counted.transactions, list(found.anchors)) == (0, [])


def test_only_those_asked_for_are_counted(spark: SparkSession) -> None:
    log = Memory()
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    for selection, count in (
        (AuditSelection(since=BORN, until=BORN + 1), 1),
        (AuditSelection(since=BORN + 1), 0),
        (AuditSelection(until=BORN), 0),
        (AuditSelection(topics=frozenset({ORDERS})), 1),
        (AuditSelection(topics=frozenset({FORWARDED})), 0),
    ):
        found = told(spark, log, selection)
        assert found.counted.transactions == count
        # It is evidence about other transactions all the same.
        assert found.anchors == [Anchor(PLAIN, ORDERS, 0, 0, 0)]


def test_facts_do_not_matter(spark: SparkSession) -> None:
    """The fate is the same whatever was applied, removed, or hidden, so the fast path needs no facts."""
    log = Memory()
    half, refused = log.half(), log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.end(refused, ROLLBACK)
    log.transaction(log.op("rollback", refused))
    for fact in (
        HalfFacts(PLAIN, 0),
        HalfFacts(PLAIN, 0, applied_to=0, low=9, ends_since=BORN + 9, outcomes_since=BORN + 9, op_settled=False),
        HalfFacts(PLAIN, 0, applied_to=9, low=9),
    ):
        rows, _ = judged(spark, log, log.frames(spark), log.facts(partitions=[fact], topics=[], before={}))
        told = findings.find(verdicts.assign(loss_evidence.add(spark, rows, (), []))).orderBy("half").collect()
        assert [(row.fate, row.breaches, row.findings) for row in told] == [
            ("delivered", [], []),
            ("rolled_back", [], []),
        ]


def test_what_is_gone_of_plain_ones_is_told_as_by_all_rules(spark: SparkSession) -> None:
    """Both ways count the same transactions as not judged, for the same reasons."""
    log = Memory()
    for partition, decision in ((PLAIN, COMMIT), (PLAIN, ROLLBACK), (PASSED, COMMIT)):
        half = log.half(partition=partition)
        log.end(half, decision)
        if decision == COMMIT:
            log.deliver(half)
        else:
            log.transaction(log.op("rollback", half))
    facts = log.facts(
        partitions=[
            HalfFacts(PLAIN, 0, applied_to=2, low=2, ends_since=BORN, parked_since=BORN),
            HalfFacts(PASSED, 0, checkpoint_gone=True),
        ],
        checks_since={"billing": BORN},
    )
    found = split(FrameCache(spark), log.names, log.frames(spark), facts, AuditSelection()).counted
    rows, anchors = judged(spark, log, log.frames(spark), facts)
    told = summary.counts(findings.find(verdicts.assign(loss_evidence.add(spark, rows, (), anchors))))
    assert found.transactions == told.transactions == 3
    assert found.reach == told.reach
    assert reach.by_rule(found.reach) == {
        "BEFORE_DECISION": {"END_GONE": 1},
        "CHECKED_AFTER_DECISION": {"CHECKS_AGED": 1, "END_GONE": 2},
        "LEAKED": {"END_GONE": 1},
        "LOST": {"END_GONE": 1},
        "OVERTAKEN": {"END_GONE": 1},
        "PROGRESS_AHEAD": {"CHECKPOINT_GONE": 1},
        "WRONG_WINNER": {"END_GONE": 2},
    }
