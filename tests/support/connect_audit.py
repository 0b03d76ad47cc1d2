"""A program that audits over Spark Connect: `python -m tests.support.connect_audit SERVERS NAMESPACE LEDGER`.

It prints the results for the test as JSON. A process has only one Spark, so it cannot be that of the other tests.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from txbridge_audit import run_audit
from txbridge_audit.engines.spark.spark_session import CONNECTOR


def main(servers: str, namespace: str, ledger: str) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.jars.packages", CONNECTOR)
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    zone = spark.conf.get("spark.sql.session.timeZone")
    # The second audit has the code in its session already.
    first, second = (run_audit(servers, namespace=namespace, spark=spark, ledger_path=ledger + n) for n in "12")
    told = {
        "violations": first.violations.by_kind,
        "same_again": first.violations == second.violations,
        "rows": spark.read.parquet(ledger + "1").count(),
        "settings_are_as_before": spark.conf.get("spark.sql.session.timeZone") == zone,
    }
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
