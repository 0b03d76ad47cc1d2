"""The engine for the past: PySpark reads and counts."""
