"""The audit for notebooks: transactions and violations as DataFrames, to be joined with other tables.

The schemas are documented and stable (docs/audit.md): a column changes its meaning only with the ledger's.
"""

from __future__ import annotations

import atexit
import dataclasses
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.audit import run_audit
from txbridge_audit.engines.spark.spark_audit import COLUMNS
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditLimits, AuditSelection
from txbridge_audit.report.model import AuditReport

#: A row per transaction: the columns of the ledger.
TRANSACTIONS = COLUMNS
#: A row per violation that the report lists.
VIOLATIONS = (
    "kind string, says string, transaction string, group string, real_topic string, "
    "evidence array<struct<role: string, topic: string, partition: int, offset: bigint>>"
)


@dataclass(frozen=True, slots=True)
class Audited:
    """One audit: its report, and its rows as DataFrames. All have the same cuts."""

    report: AuditReport
    #: A row per transaction (TRANSACTIONS).
    transactions: DataFrame
    #: A row per violation (VIOLATIONS), phantoms included.
    violations: DataFrame


def audited(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    namespace: str = "",
    kafka_options: Mapping[str, str] | None = None,
    real_topics: Collection[str] = (),
    selection: AuditSelection | None = None,
    limits: AuditLimits | None = None,
    ledger_path: str | None = None,
) -> Audited:
    """Audit once (see `run_audit` for the options). Records that are written later do not change the result.

    The rows are in a ledger: a new folder at `ledger_path`, or one of this machine that is deleted when Python ends.
    Raises CouldNotAuditError.
    """
    report = run_audit(
        bootstrap_servers,
        namespace=namespace,
        kafka_options=kafka_options,
        real_topics=real_topics,
        spark=spark,
        selection=selection,
        limits=limits,
        ledger_path=(path := ledger_path or _own_folder(spark)),
    )
    # With a schema: Spark would infer the type of `real_topic` from the names of the topics.
    entries = spark.createDataFrame([dataclasses.asdict(entry) for entry in report.violations.listed], VIOLATIONS)
    return Audited(report, spark.read.schema(TRANSACTIONS).parquet(path), entries)


def _own_folder(spark: SparkSession) -> str:
    # The server of Spark Connect may be on another machine.
    if not hasattr(spark, "sparkContext") or not str(spark.conf.get("spark.master")).startswith("local"):
        raise CouldNotAuditError(
            "the executors of a cluster cannot write to this machine: give ledger_path a new folder that they reach"
        )
    folder = tempfile.mkdtemp(prefix="txbridge-audit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"file://{folder}/ledger"
