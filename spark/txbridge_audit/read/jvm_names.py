"""What PySpark asks of its JVM again and again: the class of a function, and that it has one of that name.

Both take a call of their own, each time that a function is called. The answers do not change.
"""

from __future__ import annotations

from typing import Any

#: Classes of Spark's functions, as PySpark calls them.
_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")


class _Remembered:
    """A class of the JVM that is asked once for each of its static methods."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        setattr(self, name, found)
        return found


def remember(jvm: Any) -> None:
    """Have the view of the JVM remember these; it asks the JVM for what it does not have as an attribute."""
    for name in _CLASSES:
        setattr(jvm, name, _Remembered(getattr(jvm, name)))
