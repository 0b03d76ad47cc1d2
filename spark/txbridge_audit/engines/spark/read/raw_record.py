"""Headers and content of a raw Kafka record, as expressions of Spark's own."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)


def users_headers(is_ours: Callable[[Column], Column]) -> Column:
    """The headers of a raw record that are not ours, in their order."""
    return F.filter(F.coalesce("headers", F.array()), lambda header: ~is_ours(header["key"]))


def content(users: Column, more: Column) -> Column:
    """A hash of the user's key, value and headers, in their order. `more` is the number of surplus headers of ours.

    Equal contents have equal hashes, so a difference proves something. Two contents share a hash once in 2^64. Spark's
    hash skips nulls, which differ from empty bytes, so it also gets whether each value is null.
    """
    told = F.transform(users, lambda header: F.struct(header["key"], header["value"].isNull(), header["value"]))
    return _hash(F.col("key"), F.col("value"), told, more).alias("content")


def content_of_part(key: Column, value: Column, told: Column) -> Column:
    """The same hash for one of several messages, whose copy has one more header of ours: its number."""
    return _hash(key, value, told, F.lit(1))


def _hash(key: Column, value: Column, told: Column, more: Column) -> Column:
    return F.xxhash64(key.isNull(), key, value.isNull(), value, F.size(told), told, more)


def header(name: str) -> Column:
    """A header of a raw record by its name; of a repeated one the last; null when there is none.

    Building a map of the headers took as long as reading the record. The names are reversed once for all look-ups.
    """
    place = F.size("headers") - F.array_position(F.reverse("headers.key"), name)
    return F.get("headers", place)["value"].cast("string")
