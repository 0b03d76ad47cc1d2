"""The audit on a real Kafka with the violations of tests/support/audit_cases.py: it finds these and nothing else."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import txbridge_audit
from confluent_kafka.admin import NewTopic
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)
from pyspark.sql.types import StructType
from txbridge_audit import AuditReport, CouldNotAuditError, notebook, run_audit
from txbridge_audit.cluster import facts, selection
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.spark.incremental.follow import follow
from txbridge_audit.engines.spark.incremental.steps import Increments
from txbridge_audit.engines.spark.incremental.store import Store
from txbridge_audit.engines.spark.read import kafka_source
from txbridge_audit.judge.facts import AuditLimits
from txbridge_audit.judge.selection import AuditSelection

from tests.support.audit_cases import CASES, TAIL, plant
from tests.support.audit_log import VIOLATIONS, KafkaLog, transactions
from tests.support.audit_terms import (
    ABSENT,
    COMMIT,
    FORWARDED,
    ORDERS,
    PARTITIONS,
    PASSED,
    PLAIN,
    ROLLBACK,
    Half,
    Record,
)
from txbridge.embedded import EmbeddedKafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster of its own, because half messages of other namespaces would explain phantoms."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture(scope="module")
def planted(kafka: EmbeddedKafka) -> tuple[KafkaLog, dict[str, Half | None]]:
    log = KafkaLog(kafka.bootstrap_servers)
    return log, plant(log)


def audit(log: KafkaLog, spark: SparkSession, **more: object) -> AuditReport:
    return run_audit(log.servers, namespace=log.names.namespace, spark=spark, **more)  # type: ignore[arg-type]


def evidence(report: AuditReport, half: Half) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Kind of each violation and finding of a transaction, with the role and offset of each record."""
    entries = [*report.violations.listed, *report.findings.listed]
    return [
        (entry.kind, entry.real_topic or "", [(place.role, place.offset) for place in entry.evidence])
        for entry in entries
        if any((p.role, p.partition, p.offset) == ("half", half.partition, half.offset) for p in entry.evidence)
    ]


def test_finds_what_was_planted_and_nothing_else(
    planted: tuple[KafkaLog, dict[str, Half | None]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    log, halves = planted
    said: list[str] = []
    folder = str(tmp_path / "ledger")
    report = audit(log, spark, progress=said.append, real_topics=[log.real(FORWARDED)], ledger_path=folder)
    cases = [*CASES.values(), *TAIL.values()]

    fates = Counter(transactions())
    assert +Counter(report.fates) == fates
    assert report.transactions == fates.total()
    assert +Counter(report.pending_states) == Counter(case.state for case in cases if case.state)
    found = Counter(kind for case in cases for kind in (*case.findings, *case.strays))
    assert dict(report.findings.by_kind) == {kind: count for kind, count in found.items() if kind not in VIOLATIONS}
    assert dict(report.violations.by_kind) == VIOLATIONS
    assert report.violations.total == len(report.violations.listed) == sum(VIOLATIONS.values())
    assert (report.exit_code, report.strict_exit_code) == (1, 1)
    assert not report.clean

    assert report.answered_by_check == 1
    assert report.delivered_more_than_once == 2  # a message, and one of several
    assert report.rolled_back_but_visible == 3  # the same, leaked, and where a later commit prevailed
    assert (report.delivered, report.rolled_back) == (fates["delivered"], fates["rolled_back"])
    assert "reading half messages" in said

    for name, case in (CASES | TAIL).items():
        half = halves[name]
        if half is not None:
            kinds = {kind for kind, _, _ in evidence(report, half)}
            assert kinds == case.findings | ({case.fate} & set(report.violations.by_kind)), name
    rows = spark.read.parquet(folder).collect()
    ledger_says_the_same([row for row in rows if row.fate], halves)
    phantoms = [row for row in rows if not row.fate]
    assert {tuple(row.violations) for row in phantoms} == {("PHANTOM",)}
    assert {(row.transaction, row.partition, row.half, *row.delivered[0]) for row in phantoms} == claims(report)
    assert len(phantoms) == VIOLATIONS["PHANTOM"]
    (summary,) = spark.read.text(f"{folder}/_audit").collect()
    assert json.loads(summary.value) == json.loads(report.to_json())
    with pytest.raises(CouldNotAuditError, match=r"there is a ledger in .* already: give --ledger a new folder"):
        audit(log, spark, ledger_path=folder)


def claims(report: AuditReport) -> set[tuple[object, ...]]:
    """For each phantom: its id, the half coordinates that it claims, and the place of the copy."""
    found: set[tuple[object, ...]] = set()
    for entry in report.violations.listed:
        if entry.kind == "PHANTOM":
            [copy, *claimed] = entry.evidence
            half = (claimed[0].partition, claimed[0].offset) if claimed else (None, None)
            found.add((entry.transaction, *half, copy.topic, copy.partition, copy.offset))
    return found


def ledger_says_the_same(rows: list[Row], halves: dict[str, Half | None]) -> None:
    """Compare the Parquet ledger with the planted transactions: one row each, with fate and history."""
    by_place = {(row.partition, row.half): row for row in rows}
    assert len(by_place) == len(rows)
    named = {name: by_place[half.partition, half.offset] for name, half in halves.items() if half is not None}
    for name, row in named.items():
        case, half = (CASES | TAIL)[name], halves[name]
        assert half is not None
        assert (row.fate, row.pending_state, {*row.violations, *row.findings}) == (case.fate, case.state, case.findings)
        assert (row.transaction, row.id_sha256) == (half.id[:8], hashlib.sha256(half.id.encode()).hexdigest())
        assert half.id not in str(row)
        assert (row.real_topic, row.group, str(row.day)) == (half.topic, half.group, str(row.prepared_at.date()))

    def rulings(name: str) -> list[tuple[int, str, str]]:
        return [(end.decision, end.source, end.ruling) for end in named[name].decisions]

    assert rulings("later_rollback_refused") == [(8, "client", "decided"), (12, "check", "CONTRADICTION")]
    assert rulings("repeated") == [(8, "client", "decided"), (8, "client", "REPEAT")]
    assert rulings("wrong_transaction_id") == [(8, "client", "WRONG_TRANSACTION_ID"), (12, "client", "decided")]
    assert rulings("wrong_group") == [(8, "client", "WRONG_GROUP"), (12, "client", "decided")]
    assert rulings("late_then_resumed") == [(12, "client", "LATE"), (0, "resume", "resume"), (8, "client", "decided")]
    assert rulings("resumed_and_committed") == [(0, "resume", "resume"), (8, "operator", "decided")]
    asked = named["delivered_in_answer_to_a_check"]
    assert (asked.decision, asked.decided_by, asked.checks_sent) == ("commit", "check", 1)
    assert [(end.remark, end.check, end.ruling) for end in asked.decisions] == [
        ("no idea, sorry", None, "unknown"),
        (None, 1, "decided"),
    ]
    assert asked.prepare_to_decision_ms >= 0
    assert asked.decision_to_delivery_ms >= 0
    assert [len(named[name].delivered) for name in ("delivered", "duplicated", "rolled_back")] == [1, 2, 0]
    held = named["held"]
    assert (held.held_why, held.held_ms, held.delivered_at) == ("no such topic", None, None)
    assert held.held_since >= held.prepared_at
    again = named["discarded_again_after_a_resume"]
    assert [(record.reason, record.checks) for record in again.discard_records] == [("MAX_CHECKS", 15)] * 2
    assert (again.checks_sent, again.resumed_end) == (15, again.decisions[0].end)


@pytest.mark.long
def test_evidence(planted: tuple[KafkaLog, dict[str, Half | None]], kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    half = log.half()
    first, second = log.end(half, ROLLBACK), log.end(half, COMMIT)
    copy = log.copy(half, partition=1)
    outcome = log.op("commit", half)
    log.transaction(copy, outcome)
    phantom = log.copy(Half(PLAIN, 7, "F" * 32, "billing", log.real(ORDERS)))
    log.transaction(phantom)
    report = audit(log, spark)

    records = [("half", half.offset), ("end", first), ("end", second), ("op", outcome.offset), ("copy", copy.offset)]
    assert evidence(report, half) == [("WRONG_WINNER", log.real(ORDERS), records)]
    (entry,) = [entry for entry in report.violations.listed if entry.kind == "PHANTOM"]
    assert [(place.role, place.topic, place.partition, place.offset) for place in entry.evidence] == [
        ("copy", log.real(ORDERS), 0, phantom.offset),
        # The half coordinates that the copy claims.
        ("claims", log.names.half, PLAIN, 7),
    ]
    assert entry.transaction == "F" * 8
    # A complete transaction id is the right to decide, so a report never shows one.
    text = report.to_json()
    assert half.id not in text
    assert half.id[:8] in text
    assert json.loads(text)["cuts"][log.names.end] == {"0": {"start": 0, "end": 2}, "1": {"start": 0, "end": 0}}


def test_clean_and_empty(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    report = audit(log, spark, real_topics=[log.real(ORDERS), log.real(ABSENT)])
    assert (report.transactions, report.exit_code, dict(report.findings.by_kind)) == (0, 0, {})
    assert log.real(ORDERS) in report.cuts
    log.transaction(log.copy(Half(PLAIN, 0, "F" * 32, "billing", log.real(ORDERS))))
    # No half message names the topic, so the audit reads it only when an option names it.
    assert audit(log, spark).clean
    assert audit(log, spark, real_topics=[log.real(ORDERS)]).violations.by_kind["PHANTOM"] == 1


@pytest.mark.long
def test_open_kafka_transaction_hides_but_accuses_nobody(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    before, behind = log.half(), log.half()
    for half in (before, behind):
        log.end(half, COMMIT)
    log.deliver(before)
    foreign = log.left_open(Record(log.real(ORDERS), 0, b"k", b"v", []))
    log.deliver(behind)
    log.transaction(log.progress(PLAIN, half=2))
    report = audit(log, spark, settle_timeout=0.5)
    assert report.clean
    assert (report.delivered, report.pending_states["in_commit"]) == (1, 1)
    assert dict(report.findings.by_kind) == {"OPEN_TRANSACTION": 1}
    foreign.abort_transaction()
    after = audit(log, spark)
    assert (after.delivered, after.clean, after.findings.total) == (2, True, 0)


@pytest.mark.long
def test_open_kafka_transaction_in_end_hides_decisions_and_is_told(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    half, behind = log.half(), log.half()
    stranger = log.left_open(log.decision(half, ROLLBACK))
    log.end(behind, COMMIT)
    report = audit(log, spark, settle_timeout=0.5)
    assert (report.clean, report.pending, dict(report.findings.by_kind)) == (True, 2, {"OPEN_TRANSACTION": 1})
    [entry] = report.findings.listed
    assert (entry.evidence[0].topic, entry.evidence[0].offset) == (log.names.end, 0)
    stranger.abort_transaction()
    log.transaction(log.copy(behind), log.op("commit", behind), log.progress(PLAIN, half=0))
    after = audit(log, spark)
    assert (after.clean, after.delivered, after.pending, after.findings.total) == (True, 1, 1, 0)


@pytest.mark.long
def test_poll_is_not_waited_out_where_only_markers_are_left(
    kafka: EmbeddedKafka, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each audit would take as long as the greatest silence of a broker that it allows."""
    monkeypatch.setattr(kafka_source, "POLL_TIMEOUT_MS", 120_000)
    log = KafkaLog(kafka.bootstrap_servers)
    record = Record(log.real(ORDERS), 0, b"k", b"v", [])
    log.transaction(record)  # with its marker after it
    log.aborted(Record(log.real(ORDERS), 0, b"k", b"v", []))
    since = time.monotonic()
    for start, end, count in ((0, 4, 1), (1, 2, 0), (1, 4, 0), (3, 4, 0)):
        spans = {(log.real(ORDERS), 0): Range(start, end)}
        raw = kafka_source.read(spark, kafka_settings(log.servers), spans, kafka_source.READ_COMMITTED)
        assert raw.count() == count
    assert time.monotonic() - since < 60


@pytest.mark.long
def test_retention_and_deleted_records_raise_no_false_alarm(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    expired, removed, kept, also, lost = (log.half() for _ in range(5))
    for half in (expired, removed, kept, also, lost):
        log.end(half, COMMIT)
    log.transaction(log.progress(PLAIN, half=0))
    copies = [log.deliver(half) for half in (expired, removed, kept, also)]
    log.transaction(log.op("commit", lost))
    log.delete_records(log.real(ORDERS), 0, copies[2].offset)
    report = audit(log, spark)
    assert (report.delivered, report.unverifiable, report.fates["LOST"]) == (2, 2, 1)
    # Now the half messages and all of END are removed, too, so no evidence against any copy is left.
    log.delete_records(log.names.half, 0, kept.offset)
    log.delete_records(log.names.end, 0, 5)
    log.transaction(log.copy(expired), log.copy(Half(PLAIN, removed.offset, "E" * 32, "billing", log.real(ORDERS))))
    report = audit(log, spark)
    assert (report.transactions, report.delivered, report.fates["LOST"]) == (3, 2, 1)
    assert dict(report.findings.by_kind) == {"HALF_GONE": 2, "HALF_RANGE_GONE": 1, "BLIND": 5}
    # The real topic is deleted and created again, so the loss of its records is not txbridge's.
    log.delete(log.real(ORDERS))
    log.create(NewTopic(log.real(ORDERS), 2, 1))
    report = audit(log, spark)
    assert (report.clean, report.unverifiable) == (True, 3)
    assert dict(report.findings.by_kind) == {"NOT_IN_TOPIC": 3, "HALF_RANGE_GONE": 1, "BLIND": 2}


@pytest.mark.long
def test_a_discard_topic_that_retention_has_emptied_blinds_no_rule(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    """In a healthy system the last discard may be 30 days old. All other transactions are judged as before."""
    log = KafkaLog(kafka.bootstrap_servers)
    old, leaked, undecided, first, lost, fine = (log.half() for _ in range(6))
    discard = log.discard(old)
    log.transaction(discard, log.op("discard", old), log.parked(old, "discarded"))
    log.end(leaked, ROLLBACK)
    log.transaction(log.copy(leaked))
    log.transaction(log.copy(undecided))
    for half in (first, lost, fine):
        log.end(half, COMMIT)
    log.deliver(first)
    log.deliver(fine)
    log.transaction(log.op("commit", lost))
    log.transaction(log.progress(PLAIN, half=6), log.progress(PASSED, half=0))
    before = audit(log, spark)
    # -1 also removes the marker, which has the last offset.
    log.delete_records(log.names.discard, 0, -1)
    of_all = txbridge_audit.audited(spark, log.servers, namespace=log.names.namespace)
    frames_say_the_same(spark, of_all, {leaked: "LEAKED", undecided: "LEAKED", lost: "LOST", fine: "delivered"})
    report = of_all.report
    assert (report.fates, dict(report.violations.by_kind)) == (before.fates, dict(before.violations.by_kind))
    assert (report.fates["LEAKED"], report.fates["LOST"], report.discarded) == (2, 1, 1)
    assert before.unjudged == {}
    # Only the discarded transaction is not judged, because what followed its discard is unknown.
    assert report.unjudged == {"LOST": {"DISCARD_GONE": 1}, "WRONG_WINNER": {"DISCARD_GONE": 1}}
    assert report.to_dict()["unjudged"] == report.unjudged
    assert "BLIND" not in report.findings.by_kind


def frames_say_the_same(spark: SparkSession, of_all: txbridge_audit.Audited, fates: dict[Half, str]) -> None:
    """Compare the DataFrames with the documented schemas, and join them with a table of the user's own."""
    table, wrong = of_all.transactions, of_all.violations
    assert table.schema == StructType.fromDDL(notebook.TRANSACTIONS)
    assert wrong.schema == StructType.fromDDL(notebook.VIOLATIONS)
    # The files have the same columns: no column is null because of a different name or type.
    written = spark.read.parquet(table.inputFiles()[0].rpartition("/day=")[0])
    assert {(field.name, field.dataType) for field in written.schema} == {(f.name, f.dataType) for f in table.schema}
    own = spark.sql(f"select explode(array({', '.join(str(half.offset) for half in fates)})) as my_order")
    joined = own.join(table, (table.half == own.my_order) & (table.partition == PLAIN)).collect()
    assert {row.my_order: row.fate for row in joined} == {half.offset: fate for half, fate in fates.items()}
    listed = wrong.select("kind", "transaction", F.explode("evidence.role").alias("role")).where("role = 'half'")
    bad = {(fate, half.id[:8]) for half, fate in fates.items() if fate.isupper()}
    found = {(row.kind, row.transaction) for row in listed.collect()}
    assert bad <= found
    assert {transaction for _, transaction in found} == {transaction for _, transaction in bad}


@pytest.mark.long
def test_a_rule_that_judges_nothing_is_a_finding_and_strict_fails(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.transaction(log.progress(PLAIN, half=1))
    assert (audit(log, spark).unjudged, audit(log, spark).strict_exit_code) == ({}, 0)
    log.delete_records(log.names.end, PLAIN, -1)
    report = audit(log, spark)
    gone = {"END_GONE": 1}
    blind = ("BEFORE_DECISION", "CHECKED_AFTER_DECISION", "LEAKED", "OVERTAKEN", "WRONG_WINNER")
    assert report.unjudged == dict.fromkeys(blind, gone)
    assert (report.clean, report.exit_code, report.strict_exit_code) == (True, 0, 1)
    assert report.findings.by_kind["BLIND"] == len(blind)
    says = "LEAKED could judge none of 1: END no longer holds all decisions of their time"
    assert says in [entry.says for entry in report.findings.listed]
    # HALF is empty, so a verdict "clean" would be about nothing.
    log.delete_records(log.names.half, PLAIN, -1)
    report = audit(log, spark)
    assert (report.transactions, report.strict_exit_code) == (0, 1)
    assert "retention has left nothing in" in report.findings.listed[-1].says


@pytest.mark.long
def test_range_of_time_and_chosen_topics(
    kafka: EmbeddedKafka, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions outside the choice are not judged. Their copies and ENDs do not count as strays."""
    # One broker has one clock. The usual margin of an hour would make the audit read everything here.
    monkeypatch.setattr(selection, "CLOCK_MARGIN_MS", 0)
    log = KafkaLog(kafka.bootstrap_servers)
    leaked, old = log.half(), log.half(partition=PASSED)
    log.deliver(leaked)
    log.end(old, COMMIT)
    log.deliver(old)
    time.sleep(0.05)
    mark = time.time_ns() // 1_000_000
    time.sleep(0.05)
    new, elsewhere = log.half(), log.half(topic=FORWARDED)
    for half in (new, elsewhere):
        log.end(half, COMMIT)
        log.deliver(half)
    log.transaction(log.progress(PLAIN, half=0), log.progress(PASSED, half=0))
    since = audit(log, spark, selection=AuditSelection(since=mark))
    assert (since.transactions, since.delivered, since.clean, dict(since.findings.by_kind)) == (2, 2, True, {})
    assert since.cuts[log.names.half]["0"]["start"] == new.offset
    until = audit(log, spark, selection=AuditSelection(until=mark, topics=frozenset({log.real(ORDERS)})))
    assert (until.transactions, until.delivered, until.fates["LEAKED"]) == (2, 1, 1)
    assert log.real(FORWARDED) not in until.cuts
    assert json.loads(until.to_json())["selection"] == {"since": None, "until": mark, "topics": [log.real(ORDERS)]}
    with pytest.raises(CouldNotAuditError, match=r"no topic nowhere, and no half message names it: check --only-topic"):
        audit(log, spark, selection=AuditSelection(topics=frozenset({"nowhere"})))
    log.delete_records(log.names.half, PLAIN, new.offset)
    with pytest.raises(CouldNotAuditError, match=r"retention has left nothing before .*HALF_TOPIC/0.* a later --since"):
        audit(log, spark, selection=AuditSelection(since=mark - 1_000))


@pytest.mark.long
def test_two_namespaces_share_a_real_topic(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    ours, theirs = KafkaLog(kafka.bootstrap_servers), KafkaLog(kafka.bootstrap_servers)
    mine = ours.half()
    ours.end(mine, COMMIT)
    ours.deliver(mine)
    shared = Half(PLAIN, mine.offset, theirs.half().id, "billing", mine.topic)
    ours.transaction(ours.copy(shared), ours.progress(PLAIN, half=0))
    report = audit(ours, spark)
    assert report.clean
    assert dict(report.findings.by_kind) == {"OTHER_NAMESPACE": 1}


@pytest.mark.long
def test_live_system_raises_no_false_alarm(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    """Transactions start, are decided and are delivered while audits run. No order of events is a violation."""
    log = KafkaLog(kafka.bootstrap_servers)
    stop = threading.Event()
    written = Counter[str]()

    def work() -> None:
        while not stop.is_set():
            first, second = log.half(), log.half()
            log.end(second, ROLLBACK)
            log.end(first, COMMIT)
            records = (log.op("rollback", second), log.progress(PLAIN, half=second.offset + 1))
            copy = log.copy(first, partition=first.offset % 2)
            if written["committed"] % 5 == 0:
                log.aborted(copy, log.op("commit", first))
            log.transaction(copy, log.op("commit", first), *records)
            written.update(["committed", "rolled back"])

    writer = threading.Thread(target=work)
    writer.start()
    try:
        reports = [audit(log, spark) for _ in range(2)]
    finally:
        stop.set()
        writer.join()
    for report in reports:
        assert report.violations.total == 0, report.violations.listed
        assert report.findings.total == 0, report.findings.listed
        assert report.delivered > 0
    last = audit(log, spark)
    assert last.pending == 0
    assert (last.delivered, last.rolled_back) == (written["committed"], written["rolled back"])
    assert last.transactions > reports[-1].transactions > reports[0].transactions


@pytest.mark.long
def test_refuses_when_no_verdict_is_possible(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    with pytest.raises(CouldNotAuditError, match=r"127\.0\.0\.1:9 cannot be reached .*--bootstrap-servers"):
        run_audit("127.0.0.1:9", spark=spark)
    with pytest.raises(CouldNotAuditError, match=r"no topic nowhere\.RMQ_SYS_TRANS_HALF_TOPIC.*topics apply"):
        run_audit(kafka.bootstrap_servers, namespace="nowhere", spark=spark)
    log = KafkaLog(kafka.bootstrap_servers)
    with pytest.raises(CouldNotAuditError, match="no topic nowhere, to which violations are to be written: create it"):
        follow(log.servers, "unused", stop=threading.Event(), violations_topic="nowhere", namespace=log.names.namespace)
    newer = Record(log.names.op, PLAIN, None, b"0", [("TXB_V", b"2"), ("TAGS", b"d"), ("OUTCOME", b"commit")])
    log.transaction(newer)
    with pytest.raises(CouldNotAuditError, match=r"OP_HALF_TOPIC/0@0 has TXB_V=2, .* use the audit of that version"):
        audit(log, spark)
    log.transaction(replace(log.progress(PLAIN, half=1), headers=[("TXB_V", b"2")]))
    with pytest.raises(CouldNotAuditError, match=r"OFFSET_TOPIC/0@0 has TXB_V=2"):
        audit(log, spark)
    log = KafkaLog(kafka.bootstrap_servers)
    log.transaction(log.progress(PLAIN, half=1))
    with pytest.raises(CouldNotAuditError, match=r"HALF_TOPIC/0 ends at 0, below the worker's checkpoint \(1\)"):
        audit(log, spark)
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.progress(PLAIN, half=0, topics={"end": "AAAAAAAAAAAAAAAAAAAAAA"}))
    with pytest.raises(CouldNotAuditError, match="END_TOPIC was deleted and created again"):
        audit(log, spark)
    log.delete(log.names.op)
    log.create(NewTopic(log.names.op, PARTITIONS + 1, 1))
    with pytest.raises(CouldNotAuditError, match="the same number of partitions"):
        audit(log, spark)


class KilledError(Exception):
    """Stands for kill -9."""


@pytest.mark.long
def test_a_follower_keeps_in_memory_the_rows_of_its_last_step_alone(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, settings = KafkaLog(kafka.bootstrap_servers), kafka_settings(kafka.bootstrap_servers)
    cluster = AuditedCluster(settings)
    topics = facts.internal_topics(cluster, log.names)
    source = kafka_source.AuditSource(spark, cluster, settings, log.names, topics, lambda _: None)
    increments = Increments.open(source, str(tmp_path / "ledger"))
    kept = spark.sparkContext._jsc.getPersistentRDDs  # type: ignore[attr-defined]
    before = set(kept())

    def step(*, closing: bool) -> None:
        half = log.half()
        log.end(half, COMMIT)
        log.deliver(half)
        plan = Plan(int(time.time() * 1000), AuditLimits(), AuditSelection(), frozenset(), settle_timeout=30)
        increments.step(plan, closing=closing)

    def held() -> int:
        return len(set(kept()) - before)

    def killed(_: object, __: object) -> None:
        raise KilledError

    # The first step leaves its rows in files, each later one in memory.
    numbers = []
    for closing in (True, False, True, True, True):
        step(closing=closing)
        numbers.append(held())
    assert numbers == [0, 1, 1, 1, 1]
    for closing in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "commit_state", killed)
            with pytest.raises(KilledError):
                step(closing=closing)
        assert held() == 1, "a step that failed"
    step(closing=True)
    assert held() == 1
