"""Delta Lake in a Spark session: its jars, and the settings that it needs.

Spark's own Ivy fetches the jars, as it does Kafka's connector. No Python package is needed.
"""

from __future__ import annotations

import pyspark
from pyspark.sql import SparkSession

from txbridge_audit.errors import CouldNotAuditError

_PACKAGES = {
    "4.0": "io.delta:delta-spark_2.13:4.0.0",
    # From this version on, the name says for which Spark it was built.
    "4.1": "io.delta:delta-spark_4.1_2.13:4.1.0",
}
_SPARK = ".".join(pyspark.__version__.split(".")[:2])
#: Newer versions of Spark get the last one.
PACKAGE = _PACKAGES.get(_SPARK, _PACKAGES["4.1"])
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
#: Settings that a session must be started with.
SESSION = {
    "spark.sql.extensions": _EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def refuse_without(spark: SparkSession) -> None:
    """Raise CouldNotAuditError when the session was started without Delta Lake. It cannot be added later."""
    if _EXTENSION not in str(spark.conf.get("spark.sql.extensions", "")):
        told = " ".join(f"--conf {name}={value}" for name, value in SESSION.items())
        raise CouldNotAuditError(
            f"this Spark session lacks Delta Lake: start it with --packages {PACKAGE} {told}, "
            "or leave --ledger-format delta out"
        )
