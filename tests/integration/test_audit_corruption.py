"""Planted corruption on a real Kafka, a few thousand transactions for each seed; `make corruption` plants a million.

A full audit, a continued one and one that follows must each find all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from txbridge_audit import AuditReport, Entry, run_audit
from txbridge_audit.audit import AuditEngine

from tests.corruption.matrix import compare, table
from tests.corruption.writer import Writer
from tests.support.module_fixtures import module_kafka
from tests.support.quick_spark import interpreting_session
from txbridge.embedded import EmbeddedKafka

VIOLATIONS = {"ALTERED", "CHECKED_AFTER_DECISION", "DUPLICATED", "EXPIRED", "LEAKED", "LOST", "PHANTOM"}
VIOLATIONS |= {"BEFORE_DECISION", "EARLY", "MISPLACED", "OUT_OF_ORDER", "OVERDUE", "OVERTAKEN", "PARTIAL"}
VIOLATIONS |= {"PROGRESS_AHEAD", "STUCK", "WRONG_WINNER"}
#: Number of Kafka transactions after which the writer lets retention remove a beginning. An audit before that would
#: know more.
RETENTION = 2
#: A cluster of its own, because half messages of other namespaces would explain phantoms.
kafka = module_kafka()


@pytest.fixture(scope="module")
def spark(running_spark: SparkSession) -> Iterator[SparkSession]:
    with interpreting_session(running_spark, shuffle_partitions=2) as own:
        yield own


def assert_finds_all(writer: Writer, report: AuditReport, each: int) -> None:
    lines = compare(writer.truth, report)
    assert all(line.right for line in lines), "\n" + table(lines)
    assert {line.kind for line in lines if line.planted >= each} >= VIOLATIONS


def said(entries: tuple[Entry, ...]) -> Counter[tuple[object, ...]]:
    return Counter((entry.kind, entry.transaction, entry.group, entry.real_topic, entry.evidence) for entry in entries)


def assert_agree(some: AuditReport, other: AuditReport) -> None:
    """Compare the verdicts and the evidence of two reports."""
    assert (some.fates, some.pending_states) == (other.fates, other.pending_states)
    for tally, others in ((some.violations, other.violations), (some.findings, other.findings)):
        assert dict(tally.by_kind) == dict(others.by_kind)
        assert said(tally.listed) == said(others.listed)
    counts = ("delivered_more_than_once", "rolled_back_but_visible", "answered_by_check", "delivered_before_given_up")
    for name in counts:
        assert getattr(some, name) == getattr(other, name)


# All tests of this file are long. In `make test` tests/support/audit_cases.py covers the rules, in memory and on Kafka.
@pytest.mark.long
def test_finds_all_that_was_planted_and_nothing_else(kafka: EmbeddedKafka) -> None:
    writer = Writer(kafka.bootstrap_servers, "seed1", 1)
    writer.plant(5_000, 15)
    report = run_audit(kafka.bootstrap_servers, namespace=writer.names.namespace, engine=AuditEngine.LOCAL)
    assert_finds_all(writer, report, 15)


@pytest.mark.long
def test_spark_finds_what_the_local_engine_finds(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    writer = Writer(kafka.bootstrap_servers, "seed5", 5)
    writer.plant(500, 2)
    report = run_audit(kafka.bootstrap_servers, namespace=writer.names.namespace, spark=spark)
    assert_finds_all(writer, report, 2)
    local = run_audit(kafka.bootstrap_servers, namespace=writer.names.namespace, engine=AuditEngine.LOCAL)
    assert_agree(report, local)


def rows_in(folder: str) -> list[dict[str, Any]]:
    """The rows of a ledger, those of the first step first."""
    rows: list[dict[str, Any]] = dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: row.get("step", 0))


def place_of(row: dict[str, Any]) -> tuple[object, ...]:
    """Key of a row of the ledger. A phantom's key has its id, because it may claim a transaction's coordinates."""
    return (row["partition"], row["half"], None if row["fate"] else row["transaction"])


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_full_audit_is_the_sum_of_its_increments(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Audit in the middle of the transactions' lives and at the end, each time only the new records.

    The first audit starts after the records that retention removes, because an audit that has read them would know
    more.
    """
    places = [8, 18]
    folder, namespace, steps = str(tmp_path / "ledger"), "increments", len(places) + 1
    reports: list[AuditReport] = []
    assert min(places) > RETENTION
    written = 0

    def audit(**how: object) -> AuditReport:
        return run_audit(kafka.bootstrap_servers, namespace=namespace, **how)  # type: ignore[arg-type]

    def between() -> None:
        nonlocal written
        written += 1
        if written in places:
            reports.append(audit(ledger_path=folder, continued=True))

    writer = Writer(kafka.bootstrap_servers, namespace, 3, batch=400, between=between)
    writer.plant(transactions=800, each=3)
    reports.append(audit(ledger_path=folder, continued=True))
    full = audit(ledger_path=str(tmp_path / "full"), engine=AuditEngine.LOCAL)
    assert_finds_all(writer, full, 3)
    assert len(reports) == steps
    assert_agree(reports[-1], full)
    # Each increment starts where the one before has ended.
    for first, second in pairwise(reports):
        for topic, partitions in first.cuts.items():
            for partition, span in partitions.items():
                assert second.cuts[topic][partition]["start"] == span["end"]
    assert {row["step"] for row in rows_in(folder)} == set(range(1, steps + 1))
    # The row of the highest step counts for each transaction.
    last = {place_of(row): row for row in rows_in(folder)}
    whole = {place_of(row): row for row in rows_in(str(tmp_path / "full"))}
    beside = Counter(kind for row in whole.values() if row["fate"] is None for kind in row["violations"])
    assert beside == Counter({kind: full.violations.by_kind[kind] for kind in ("EXPIRED", "PHANTOM")})
    assert {key: {name: row[name] for name in row if name != "step"} for key, row in last.items()} == whole
