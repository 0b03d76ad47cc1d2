"""A program that writes a ledger of planted transactions as a Delta Lake table, and the same one as Parquet.

`python -m tests.support.delta_ledger SERVERS FOLDER` prints the results for the tests as JSON. A Spark has Delta Lake
from its start or not at all, and a process has only one Spark. So these tests do not share the Spark of the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from txbridge_audit.audit import run_audit
from txbridge_audit.engines.spark.spark_session import spark_session
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.ledger.place import LedgerFormat

from tests.corruption.writer import Writer
from tests.support.quick_spark import interpreting_session

NAMESPACE = "delta"


def rows_of(table: DataFrame) -> dict[str, dict[str, object]]:
    """Rows by partition, half offset and delivered copy: a phantom may claim the coordinates of a transaction."""
    rows = (row.asDict(recursive=True) for row in table.collect())
    found = {str((row["partition"], row["half"], row["fate"] is None and str(row["delivered"]))): row for row in rows}
    assert len(found) == table.count(), "two rows of one transaction"
    return found


def looked_at(spark: SparkSession, servers: str, folder: Path) -> dict[str, object]:
    table, files = str(folder / "table"), str(folder / "files")
    Writer(servers, NAMESPACE, 3, batch=400).plant(transactions=800, each=2)

    def audit(path: str, form: LedgerFormat) -> None:
        run_audit(servers, namespace=NAMESPACE, spark=spark, ledger_path=path, ledger_format=form)

    audit(table, LedgerFormat.DELTA)
    audit(files, LedgerFormat.PARQUET)
    written = rows_of(spark.read.format("delta").load(table))
    try:
        audit(table, LedgerFormat.DELTA)
        refused = ""
    except CouldNotAuditError as error:
        refused = str(error)
    return {
        "rows": len(written),
        "as_parquet": written == rows_of(spark.read.parquet(files)),
        "operations": [row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()],
        "refused": refused,
    }


def main(servers: str, folder: str) -> None:
    with (
        spark_session(None, lambda _: None, with_delta=True) as running,
        interpreting_session(running) as spark,
    ):
        told = looked_at(spark, servers, Path(folder))
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
