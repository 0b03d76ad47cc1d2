"""The typed rows of all topics, and their form as one table, in which they are written in one job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.read.literals import without_rows


@dataclass(frozen=True, slots=True)
class Frames:
    """Typed rows of each topic, as decode.py gives them."""

    halves: DataFrame
    #: Entries of the END records that can be read, and the records that cannot.
    entries: DataFrame
    bad_ends: DataFrame
    outcomes: DataFrame
    parked: DataFrame
    discards: DataFrame
    copies: DataFrame
    checks: DataFrame
    #: Those that are known to have no row.
    none: frozenset[str] = frozenset()


TABLES = tuple(field.name for field in fields(Frames) if field.name != "none")
#: The name of its table, in a row of them all.
TABLE = "table"


def pack(frames: Frames) -> DataFrame:
    """All rows as they are, in one table."""
    return together({name: getattr(frames, name) for name in TABLES})


def together(tables: Mapping[str, DataFrame]) -> DataFrame:
    """The tables as one. `partition` and `half` are the coordinates of the half message that a row is about, if any."""
    named = F.when(~F.col("malformed"), F.col("source_offset"))
    tables = dict(tables) | {"discards": tables["discards"].withColumn("half", named)}
    return reduce(
        lambda some, more: some.unionByName(more, allowMissingColumns=True),
        (table.withColumn(TABLE, F.lit(name)) for name, table in tables.items()),
    )


def unpack(rows: DataFrame, like: Frames, there: Collection[str] = TABLES) -> Frames:
    """The tables that were put together; their columns are those of other frames.

    Tables that are not `there` have no row: it is cheaper to know that than to find nothing in each query.
    """

    def table(name: str) -> DataFrame:
        columns: DataFrame = getattr(like, name)
        return rows.where(F.col(TABLE) == name).select(*columns.columns) if name in there else without_rows(columns)

    return Frames(**{name: table(name) for name in TABLES}, none=frozenset(TABLES) - set(there))
