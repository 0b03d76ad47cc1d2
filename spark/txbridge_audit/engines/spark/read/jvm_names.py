"""Cache of PySpark's look-ups in its JVM: the class of a function, and the function of that name in it.

PySpark calls the JVM for both look-ups each time that a function is called. The answers do not change.
"""

from __future__ import annotations

from typing import Any

#: Classes of Spark's functions, as PySpark calls them.
_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")


class _RememberedNames:
    """A proxy of a JVM class that looks up each static method once."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        setattr(self, name, found)
        return found


def remember(jvm: Any) -> None:
    """Set the proxies as attributes of the JVM view. It asks the JVM only for names that it has no attribute for."""
    for name in _CLASSES:
        setattr(jvm, name, _RememberedNames(getattr(jvm, name)))
