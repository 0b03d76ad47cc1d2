"""The engine for the past: PySpark reads, and brings the mentions of each transaction together."""

from __future__ import annotations

from txbridge.extras import missing_extra

if error := missing_extra("txbridge_audit", "audit", "pyspark", "pyarrow", "numpy"):
    raise error
