"""Rows of the ledger for violations that have no half message."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from txbridge_audit.engines.spark.judge import fates, findings, ledger, loss_evidence
from txbridge_audit.engines.spark.judge.derived import delivery_latency
from txbridge_audit.engines.spark.judge.overview import overview
from txbridge_audit.engines.spark.ledger import parquet
from txbridge_audit.judge.facts import HalfFacts
from txbridge_audit.report.entry import Entry, Place

from tests.support.audit_cases import LONG_AGO
from tests.support.audit_memory import Memory
from tests.support.audit_terms import COMMIT, PLAIN, Half


def test_expired_and_phantom_have_rows_with_their_coordinates(spark: SparkSession, tmp_path: Path) -> None:
    log = Memory()
    delivered = log.half()
    log.end(delivered, COMMIT)
    log.deliver(delivered)
    expired = Half(PLAIN, 1, "E" * 32, "billing", "orders")
    log.transaction(log.parked(expired, "pending", checks=3, born=1_700_000_000_000))
    places = (Place("copy", "orders", 0, 9), Place("claims", log.names.half, PLAIN, delivered.offset))
    phantom = Entry("PHANTOM", "visible", transaction="F" * 8, real_topic="orders", evidence=places)
    unreadable = Entry("PHANTOM", "visible", real_topic="orders", evidence=(Place("copy", "orders", 1, 4),))
    other = Entry("HALF_GONE", "gone", real_topic="orders", evidence=(Place("copy", "orders", 1, 5),))

    facts = log.facts(partitions=[HalfFacts(PLAIN, half_start=0, applied_to=1, low=0, log_start=10)])
    frames = log.frames(spark)
    rows = ledger.build(spark, log.names, frames, facts)
    judged = findings.find(fates.assign(loss_evidence.add(spark, rows, (), ())))
    rows = parquet.ledger_rows(log.names, judged, frames, [phantom, other, unreadable])
    parquet.write(rows, str(tmp_path / "ledger"))

    found = spark.read.parquet(str(tmp_path / "ledger")).collect()
    [whole] = [row for row in found if row.fate]
    assert (whole.partition, whole.half, whole.fate) == (PLAIN, delivered.offset, "delivered")
    beside = {(row.violations[0], row.partition, row.half, row.transaction): row for row in found if not row.fate}
    assert len(found) == 1 + len(beside)
    assert set(beside) == {
        ("EXPIRED", PLAIN, 1, "E" * 8),
        ("PHANTOM", PLAIN, delivered.offset, "F" * 8),
        ("PHANTOM", None, None, None),
    }
    gone = beside["EXPIRED", PLAIN, 1, "E" * 8]
    assert (gone.group, gone.real_topic, str(gone.day), gone.checks_sent) == ("billing", "orders", "2023-11-14", 3)
    claimed = beside["PHANTOM", PLAIN, delivered.offset, "F" * 8]
    assert ([tuple(place) for place in claimed.delivered], claimed.copies) == ([("orders", 0, 9)], 1)


@pytest.mark.parametrize(
    ("decided", "wanted", "delivered", "latency"),
    [
        (1_000, None, 1_012, 12),
        # Scheduled for a minute later, and delivered 20 ms after that.
        (1_000, 61_000, 61_020, 20),
        # Its time had passed before the decision.
        (1_000, 500, 1_012, 12),
        (1_000, 61_000, None, None),
    ],
)
def test_a_wanted_delay_is_no_latency(
    spark: SparkSession, decided: int, wanted: int | None, delivered: int | None, latency: int | None
) -> None:
    schema = "valid boolean, winner struct<stamp: bigint>, deliver_at bigint, committed_at bigint"
    rows = spark.createDataFrame([(True, (decided,), wanted, delivered)], schema)
    [row] = rows.select(delivery_latency().alias("ms")).collect()
    assert row.ms == latency


def test_the_ledger_counts_the_latency_of_a_scheduled_message_from_its_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Memory()
    half = log.half(TXB_DELIVER_AT=str(LONG_AGO))
    log.end(half, COMMIT)
    log.deliver(half)
    frames = log.frames(spark)
    rows = ledger.build(spark, log.names, frames, log.facts())
    judged = findings.find(fates.assign(loss_evidence.add(spark, rows, (), ())))
    [row] = parquet.ledger_rows(log.names, judged, frames, []).collect()
    [seen] = judged.select("committed_at", "winner.stamp", "deliver_at").collect()
    assert row.decision_to_delivery_ms == seen.committed_at - max(seen.stamp, seen.deliver_at)
    latency = overview(judged).decision_to_delivery
    assert latency is not None
    assert latency.most == max(row.decision_to_delivery_ms, 0)
