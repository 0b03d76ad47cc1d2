"""The engine for clusters: PySpark reads, and brings the rows of each block together."""

from __future__ import annotations

from txbridge.errors import missing_extra

if error := missing_extra("txbridge_audit", "audit-spark", "pyspark", "pyarrow", "numpy"):
    raise error
