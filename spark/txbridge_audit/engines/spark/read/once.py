"""Columns that are made once for all queries.

Making a column takes some calls into Spark's JVM, and the rules take ten thousand of them. A follower that repeated the
calls in each step spent more time on that than on anything else. A column holds no rows, and does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark import SparkContext

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Made:
    """Results of the decorated functions in one JVM."""

    def __init__(self) -> None:
        self.context: SparkContext | None = None
        self.values: dict[Hashable, object] = {}


_MADE = _Made()


def once(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that it is called once in a JVM for the same arguments. These are few, and hashable."""

    @wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        context = SparkContext._active_spark_context  # noqa: SLF001  (whose end is that of its columns)
        if _MADE.context is not context:
            _MADE.context, _MADE.values = context, {}
        values, key = _MADE.values, (make, args, *kwargs.items())
        if key not in values:
            values[key] = make(*args, **kwargs)
        return values[key]  # type: ignore[return-value]

    return made
