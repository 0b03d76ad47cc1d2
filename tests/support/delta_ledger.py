"""A program that keeps a ledger as a Delta Lake table, of audits in the middle and at the end of planted transactions.

`python -m tests.support.delta_ledger SERVERS FOLDER` prints the results for the tests as JSON. A Spark has Delta Lake
from its start or not at all, and a process has only one Spark. So these tests do not share the Spark of the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)
from txbridge_audit.audit import run_audit
from txbridge_audit.engines.spark.read.spark_session import spark_session
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.formats import LedgerFormat

from tests.corruption.writer import Writer
from tests.support.quick_spark import interpreting_session

NAMESPACE = "delta"
#: A number of Kafka transactions of the writer: after those whose records retention removes, and before the last
#: decisions.
MIDDLE = 22


def rows_of(table: DataFrame) -> dict[str, dict[str, object]]:
    """Rows by partition, half offset and delivered copy: a phantom may claim the coordinates of a transaction."""
    rows = (row.asDict(recursive=True) for row in table.collect())
    found = {str((row["partition"], row["half"], row["fate"] is None and str(row["delivered"]))): row for row in rows}
    assert len(found) == table.count(), "two rows of one transaction"
    return found


def looked_at(spark: SparkSession, servers: str, folder: Path) -> dict[str, object]:
    ledger, whole = str(folder / "ledger"), str(folder / "whole")
    written = 0

    def audit(path: str, *, continued: bool, form: LedgerFormat = LedgerFormat.DELTA) -> None:
        run_audit(servers, namespace=NAMESPACE, spark=spark, ledger_path=path, continued=continued, ledger_format=form)

    def between() -> None:
        nonlocal written
        written += 1
        if written == MIDDLE:
            audit(ledger, continued=True)

    writer = Writer(servers, NAMESPACE, 3, batch=400, between=between)
    writer.plant(transactions=800, each=2)
    middle = rows_of(spark.read.format("delta").load(ledger))
    audit(ledger, continued=True)
    audit(whole, continued=False)
    now = rows_of(spark.read.format("delta").load(ledger))
    # The time as text in the session's time zone, as Delta Lake's option needs it.
    versions = spark.sql(f"DESCRIBE HISTORY delta.`{ledger}`").orderBy("version")
    history = versions.withColumn("at", F.col("timestamp").cast("string")).collect()
    earlier = rows_of(spark.read.format("delta").option("timestampAsOf", history[0].at).load(ledger))
    expected = rows_of(spark.read.format("delta").load(whole))
    steps = {key: row.pop("step") for key, row in now.items()}
    try:
        audit(ledger, continued=True, form=LedgerFormat.PARQUET)
        refused = ""
    except CouldNotAuditError as error:
        refused = str(error)
    return {
        "rows": len(now),
        "as_a_whole": now == expected,
        "earlier_as_it_was": earlier == middle,
        "changed_since": sum(middle[key]["fate"] != row["fate"] for key, row in now.items() if key in middle),
        "new_since": len(set(now) - set(middle)),
        "operations": [row.operation for row in history],
        "notes": [row.userMetadata for row in history],
        "steps": sorted(map(str, set(steps.values()))),
        "refused": refused,
    }


def main(servers: str, folder: str) -> None:
    with (
        spark_session(None, lambda _: None, small=True, with_delta=True) as running,
        interpreting_session(running) as spark,
    ):
        told = looked_at(spark, servers, Path(folder))
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
