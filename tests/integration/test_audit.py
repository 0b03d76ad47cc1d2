"""The audit on a real Kafka with the violations of tests/support/audit_cases.py: it finds these and nothing else."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import txbridge_audit
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)
from pyspark.sql.types import StructType
from txbridge_audit import AuditReport, CouldNotAuditError, notebook, run_audit
from txbridge_audit.audit import AuditEngine
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.engines.spark import kafka_source

from tests.support.audit_cases import CASES, TAIL, plant
from tests.support.audit_log import VIOLATIONS, KafkaLog, transactions
from tests.support.audit_terms import (
    COMMIT,
    FORWARDED,
    ORDERS,
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


def audit(log: KafkaLog, spark: SparkSession | None, **more: object) -> AuditReport:
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
    options = {"real_topics": [log.real(FORWARDED)], "with_overview": True}
    report = audit(log, spark, progress=said.append, ledger_path=folder, **options)
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
    local = audit(log, None, engine=AuditEngine.LOCAL, **options)
    assert report.overview == local.overview
    assert (report.violations, report.findings, report.unjudged) == (local.violations, local.findings, local.unjudged)

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
    with pytest.raises(CouldNotAuditError, match="already, or something else: give --ledger a new folder"):
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
