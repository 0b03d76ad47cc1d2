"""A value that several parts of an expression use, computed once."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)


def let(value: Column, use: Callable[[Column], Column]) -> Column:
    """The result of `use`. The value is computed once, however often `use` refers to it."""
    return F.get(F.transform(F.array(value), use), F.lit(0))
