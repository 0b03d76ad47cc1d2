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
from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditLimits
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.model import AuditReport

_PLACE = "topic: string, partition: int, offset: bigint"
_DECISION = (
    "end: bigint, line: int, at: timestamp, decision: int, source: string, client: string, group: string, "
    "check: bigint, remark: string, ruling: string"
)
_DISCARD = "at: timestamp, partition: int, offset: bigint, reason: string, end: bigint, checks: bigint"

#: A row per transaction: the columns of the ledger.
TRANSACTIONS = (
    "partition int, half bigint, transaction string, id_sha256 string, group string, real_partition int, "
    "prepared_at timestamp, fate string, pending_state string, violations array<string>, findings array<string>, "
    "decision string, decided_by string, decided_at timestamp, decided_end bigint, prepare_to_decision_ms bigint, "
    "delivered_at timestamp, decision_to_delivery_ms bigint, entries bigint, "
    f"decisions array<struct<{_DECISION}>>, checks_sent bigint, held_since timestamp, held_ms bigint, "
    f"held_why string, copies bigint, delivered array<struct<{_PLACE}>>, op_commit_offset bigint, "
    "op_rollback_offset bigint, op_discard_offset bigint, op_abandon_offset bigint, "
    f"discard_records array<struct<{_DISCARD}>>, resumed_end bigint, day date, real_topic string"
)
#: A row per violation that the report lists.
VIOLATIONS = (
    "kind string, says string, transaction string, group string, real_topic string, "
    f"evidence array<struct<role: string, {_PLACE}>>"
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
    return Audited(report, spark.read.schema(TRANSACTIONS).parquet(path), _entries(spark, report.violations.listed))


def transactions(spark: SparkSession, bootstrap_servers: str, **options: object) -> DataFrame:
    """A row per transaction; the options are those of `audited`."""
    return audited(spark, bootstrap_servers, **options).transactions  # type: ignore[arg-type]


def violations(spark: SparkSession, bootstrap_servers: str, **options: object) -> DataFrame:
    """A row per violation; the options are those of `audited`."""
    return audited(spark, bootstrap_servers, **options).violations  # type: ignore[arg-type]


def _own_folder(spark: SparkSession) -> str:
    if not str(spark.conf.get("spark.master")).startswith("local"):
        raise CouldNotAuditError(
            "the executors of a cluster cannot write to this machine: give ledger_path a new folder that they reach"
        )
    folder = tempfile.mkdtemp(prefix="txbridge-audit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"file://{folder}/ledger"


def _entries(spark: SparkSession, entries: Collection[Entry]) -> DataFrame:
    return frame(spark, map(dataclasses.asdict, entries), VIOLATIONS)
