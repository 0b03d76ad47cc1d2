"""Message frames: the messages of a half message with several, decoded from its value after docs/protocol.md.

The expressions are Spark's own, and are evaluated for such half messages only. A value that ends too early makes
positions null, and so everything that is read after them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.read.let import let

MOST_MESSAGES = 1_000
#: Of each message: its real topic, the partition and the timestamp (ms) that it asks for, and the hash of the user's
#: key, value and headers.
PARTS = "array<struct<topic: string, place: int, dated: bigint, content: bigint>>"
_HEADERS = "array<struct<name: string, is_null: boolean, value: binary>>"
_LAYOUT = b"\x01"
#: Bytes of the smallest header: two lengths.
_LEAST_HEADER = 8


def parts(value: Column, count: Column, content: Callable[[Column, Column, Column], Column]) -> Column:
    """The messages as PARTS; null when the value is not `count` whole frames.

    `content` makes the hash of key, value and headers (structs of name, whether the value is null, and value).
    """

    def number(at: Column) -> Column:
        """Four bytes, big-endian, with a sign; null beyond the end."""
        four = F.substr(value, at + 1, F.lit(4))
        unsigned = F.conv(F.hex(four), 16, 10).cast("bigint")
        signed = F.when(unsigned >= 2**31, unsigned - 2**32).otherwise(unsigned)
        return F.when(F.octet_length(four) == 4, signed)

    def data(at: Column) -> Column:
        """A length and its bytes: `bytes` (null when the length is -1), and the position after them (`next`)."""
        return let(
            number(at),
            lambda length: F.struct(
                F.when(length >= 0, F.substr(value, at + 5, length.cast("int"))).alias("bytes"),
                F.when(length == -1, at + 4)
                .when((length >= 0) & (at + 4 + length <= F.octet_length(value)), at + 4 + length)
                .alias("next"),
            ),
        )

    def header(told: Column, _: Column) -> Column:
        def with_value(name: Column) -> Column:
            return let(
                data(name["next"]),
                lambda text: F.struct(
                    text["next"].alias("at"),
                    F.array_append(
                        told["list"],
                        F.struct(
                            name["bytes"].cast("string").alias("name"),
                            text["bytes"].isNull().alias("is_null"),
                            text["bytes"].alias("value"),
                        ),
                    ).alias("list"),
                ),
            )

        return let(data(told["at"]), with_value)

    def headers(at: Column) -> Column:
        """The list of headers, and the position after them (`at`)."""
        begun = F.struct((at + 4).alias("at"), F.array().cast(_HEADERS).alias("list"))
        nowhere = F.struct(F.lit(None).cast("bigint").alias("at"), F.array().cast(_HEADERS).alias("list"))
        return let(
            number(at),
            lambda many: (
                F.when(many == 0, begun)
                .when(
                    many.between(1, (F.octet_length(value) - at) / _LEAST_HEADER),
                    F.aggregate(F.sequence(F.lit(1), many.cast("int")), begun, header),
                )
                .otherwise(nowhere)
            ),
        )

    def message(told: Column, _: Column) -> Column:
        def part(topic: Column, place: Column, key: Column, body: Column, users: Column) -> Column:
            # The timestamp has 8 bytes. A negative one is too large for bigint without its sign, and becomes null.
            eight = F.hex(F.substr(value, topic["next"] + 5, F.lit(8)))
            dated = F.conv(eight, 16, 10).try_cast("bigint")
            return F.struct(
                users["at"].alias("at"),
                F.array_append(
                    told["list"],
                    F.struct(
                        topic["bytes"].cast("string").alias("topic"),
                        F.when(place >= 0, place).cast("int").alias("place"),
                        F.when(dated > 0, dated).alias("dated"),
                        content(key["bytes"], body["bytes"], users["list"]).alias("content"),
                    ),
                ).alias("list"),
            )

        # Topic, partition (4 bytes), timestamp (8), key, value, headers.
        return let(
            data(told["at"]),
            lambda topic: let(
                number(topic["next"]),
                lambda place: let(
                    data(topic["next"] + 12),
                    lambda key: let(
                        data(key["next"]),
                        lambda body: let(headers(body["next"]), lambda users: part(topic, place, key, body, users)),
                    ),
                ),
            ),
        )

    begun = F.struct(F.lit(1).cast("bigint").alias("at"), F.array().cast(PARTS).alias("list"))
    known = count.between(1, MOST_MESSAGES) & (F.substr(value, F.lit(1), F.lit(1)) == F.lit(_LAYOUT))
    all_of_them = F.aggregate(
        F.sequence(F.lit(1), count),
        begun,
        message,
        lambda told: F.when(told["at"] == F.octet_length(value), told["list"]),
    )
    return F.when(known, all_of_them)
