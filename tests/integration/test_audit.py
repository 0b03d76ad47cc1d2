"""The work that Spark alone does: ledger and overview, a notebook's frames, reading. See test_audit_contract.py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import txbridge_audit
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)
from pyspark.sql.types import StructType
from txbridge_audit import AuditReport, CouldNotAuditError, notebook, run_audit
from txbridge_audit.audit import AuditEngine
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.engines.spark import spark_audit

from tests.support.audit_cases import plant
from tests.support.audit_log import VIOLATIONS, KafkaLog, transactions
from tests.support.audit_terms import COMMIT, FORWARDED, ORDERS, PLAIN, ROLLBACK, Half, Record
from tests.support.module_fixtures import module_kafka
from txbridge.embedded import EmbeddedKafka

#: A cluster of its own, because half messages of other namespaces would explain phantoms.
kafka = module_kafka()


def rows_in(spark: SparkSession, folder: str) -> list[str]:
    return sorted(str(sorted(row.asDict(recursive=True).items())) for row in spark.read.parquet(folder).collect())


@pytest.mark.long
def test_the_ledger_and_the_overview_are_those_of_the_local_engine(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """Of every planted case. tests/unit/audit/test_audit_ledger.py says what is in a row."""
    log = KafkaLog(kafka.bootstrap_servers)
    plant(log)

    def audit(folder: str, **how: object) -> AuditReport:
        options = {"real_topics": [log.real(FORWARDED)], "with_overview": True, "ledger_path": folder}
        return run_audit(log.servers, namespace=log.names.namespace, **options, **how)  # type: ignore[arg-type]

    ours, theirs = str(tmp_path / "spark"), str(tmp_path / "local")
    report, local = audit(ours, spark=spark), audit(theirs, engine=AuditEngine.LOCAL)
    assert dict(report.violations.by_kind) == VIOLATIONS
    assert (report.fates, report.violations, report.findings) == (local.fates, local.violations, local.findings)
    assert (report.unjudged, report.overview) == (local.unjudged, local.overview)
    rows = rows_in(spark, ours)
    assert rows == rows_in(spark, theirs)
    assert len(rows) == len(transactions()) + VIOLATIONS["PHANTOM"]
    first = [parquet.read_schema(next(Path(folder).rglob("*.parquet"))) for folder in (ours, theirs)]
    # Readers other than Spark see the same: times have a time zone.
    assert first[0].field("prepared_at").type == first[1].field("prepared_at").type
    for written, folder in ((report, ours), (local, theirs)):
        (summary,) = spark.read.text(f"{folder}/_audit").collect()
        assert summary.value == written.to_json().replace("\n", " ")
    with pytest.raises(CouldNotAuditError, match="already, or something else: give --ledger a new folder"):
        audit(ours, spark=spark)


@pytest.mark.long
def test_poll_is_not_waited_out_where_only_markers_are_left(
    kafka: EmbeddedKafka, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each audit would take as long as the greatest silence of a broker that it allows."""
    monkeypatch.setattr(spark_audit, "POLL_TIMEOUT_MS", 600_000)
    log = KafkaLog(kafka.bootstrap_servers)
    record = Record(log.real(ORDERS), 0, b"k", b"v", [])
    log.transaction(record)  # with its marker after it
    log.aborted(Record(log.real(ORDERS), 0, b"k", b"v", []))
    since = time.monotonic()
    for start, end, count in ((0, 4, 1), (1, 2, 0), (1, 4, 0), (3, 4, 0)):
        spans = {(log.real(ORDERS), 0): Range(start, end)}
        raw = spark_audit.read(spark, kafka_settings(log.servers), spans, committed=True)
        assert raw.count() == count
    assert time.monotonic() - since < 300


@pytest.mark.long
def test_frames_of_a_notebook_join_with_a_table_of_the_users_own(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    leaked, first, lost, fine = (log.half() for _ in range(4))
    log.end(leaked, ROLLBACK)
    log.transaction(log.copy(leaked))
    for half in (first, lost, fine):
        log.end(half, COMMIT)
    log.deliver(first)
    log.deliver(fine)
    log.transaction(log.op("commit", lost))
    log.transaction(log.progress(PLAIN, half=4))
    audited = txbridge_audit.audited(spark, log.servers, namespace=log.names.namespace)
    fates: dict[Half, str] = {leaked: "LEAKED", lost: "LOST", fine: "delivered"}
    table, wrong = audited.transactions, audited.violations
    assert table.schema == StructType.fromDDL(notebook.TRANSACTIONS)
    assert wrong.schema == StructType.fromDDL(notebook.VIOLATIONS)
    # The files have the same columns: no column is null because of a different name or type.
    written = spark.read.parquet(table.inputFiles()[0].rpartition("/day=")[0])
    assert {(field.name, field.dataType) for field in written.schema} == {(f.name, f.dataType) for f in table.schema}
    own = spark.sql(f"select explode(array({', '.join(str(half.offset) for half in fates)})) as my_order")
    joined = own.join(table, (table.half == own.my_order) & (table.partition == PLAIN)).collect()
    assert {row.my_order: row.fate for row in joined} == {half.offset: fate for half, fate in fates.items()}
    listed = wrong.select("kind", "transaction", F.explode("evidence.role").alias("role")).where("role = 'half'")
    kinds: dict[str, set[str]] = {}
    for row in listed.collect():
        kinds.setdefault(row.transaction, set()).add(row.kind)
    # The rollback was never applied, although HALF is done up to there.
    assert kinds == {leaked.id[:8]: {"LEAKED", "PROGRESS_AHEAD"}, lost.id[:8]: {"LOST"}}
