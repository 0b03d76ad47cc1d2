"""Kafka's hash of a key, murmur2 as in the Java producer, as an expression of Spark's own."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.read.let import let

_SEED, _FACTOR = 0x9747B28C, 0x5BD1E995
#: Numbers of 32 bits are kept in 64, where their product with _FACTOR fits and none is negative.
_WORD = 0xFFFFFFFF
#: Hexadecimal digits of four bytes.
_DIGITS = 8


def hashed(key: Column) -> Column:
    """The hash without its sign, as the producer takes it modulo the number of partitions; null without a key."""
    return let(F.hex(key), lambda digits: _of_digits(digits, F.length(key)))


def _of_digits(digits: Column, length: Column) -> Column:
    blocks = (length / 4).cast("int")
    begun = F.lit(_SEED).bitwiseXOR(length.cast("bigint"))
    # A sequence from 0 to -1 counts down, so its result is not used. Values that are used twice are parameters of
    # functions, so that nothing is computed twice.
    words = F.transform(
        F.sequence(F.lit(0), blocks - 1), lambda at: _word(F.substring(digits, at * _DIGITS + 1, _DIGITS))
    )
    mixed = F.transform(F.transform(words, _times), lambda word: _times(_folded(word, 24)))
    whole = F.when(blocks > 0, F.aggregate(mixed, begun, lambda sum_, word: _times(sum_).bitwiseXOR(word))).otherwise(
        begun
    )
    rest = _word(F.rpad(F.substring(digits, blocks * _DIGITS + 1, _DIGITS), _DIGITS, "0"))
    all_of_it = F.when(length % 4 > 0, _times(whole.bitwiseXOR(rest))).otherwise(whole)
    folded = let(all_of_it, lambda number: _times(_folded(number, 13)))
    return let(folded, lambda number: _folded(number, 15)).bitwiseAND(0x7FFFFFFF)


def _times(number: Column) -> Column:
    return (number * _FACTOR).bitwiseAND(_WORD)


def _folded(number: Column, bits: int) -> Column:
    return number.bitwiseXOR(F.shiftright(number, bits))


def _word(digits: Column) -> Column:
    """The number of four bytes, the lowest byte first."""

    def turned(number: Column) -> Column:
        first, second = F.shiftleft(number.bitwiseAND(0xFF), 24), F.shiftleft(number.bitwiseAND(0xFF00), 8)
        third, fourth = F.shiftright(number, 8).bitwiseAND(0xFF00), F.shiftright(number, 24)
        return first.bitwiseOR(second).bitwiseOR(third).bitwiseOR(fourth)

    return let(F.conv(digits, 16, 10).cast("bigint"), turned)
