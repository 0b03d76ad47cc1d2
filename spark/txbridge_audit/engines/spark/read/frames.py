"""The typed rows of all topics, and their packed form: one table, which one job can write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.read.literals import without_rows


@dataclass(frozen=True, slots=True)
class Frames:
    """Typed rows of each topic, as decode.py gives them."""

    halves: DataFrame
    #: Entries of readable END records, and the END records that cannot be read.
    entries: DataFrame
    bad_ends: DataFrame
    outcomes: DataFrame
    parked: DataFrame
    discards: DataFrame
    copies: DataFrame
    checks: DataFrame
    #: Names of the tables that are known to be empty.
    none: frozenset[str] = frozenset()


TABLES = tuple(field.name for field in fields(Frames) if field.name != "none")
#: Column of the packed form with the name of a row's table.
TABLE = "table"


def pack(frames: Frames) -> DataFrame:
    """All rows of the frames in one table."""
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
    """The tables of packed rows. Their columns are those of the frames `like`.

    Tables that are not `there` have no rows. It is cheaper to know that than to find nothing in each query.
    """

    def table(name: str) -> DataFrame:
        columns: DataFrame = getattr(like, name)
        return rows.where(F.col(TABLE) == name).select(*columns.columns) if name in there else without_rows(columns)

    return Frames(**{name: table(name) for name in TABLES}, none=frozenset(TABLES) - set(there))
