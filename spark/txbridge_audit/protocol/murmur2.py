"""Kafka's hash of a key: murmur2, as in the Java producer."""

from __future__ import annotations

_SEED, _FACTOR, _WORD = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def hash_key(key: bytes) -> int:
    """The hash without its sign, as the producer takes it modulo the number of partitions."""
    found = _SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _FACTOR & _WORD
        found = (found * _FACTOR ^ (word ^ word >> 24) * _FACTOR) & _WORD
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _WORD
    found = (found ^ found >> 13) * _FACTOR & _WORD
    return (found ^ found >> 15) & 0x7FFFFFFF


def misplaced(key: bytes, place: int, partitions: int) -> int | None:
    """The partition that the key asks for, if the record is in one (`place`) where the key was never put.

    A topic may have had fewer partitions before, so each number that leaves room for the record counts. Today's number
    nearly always explains the place, and then no other number is tried.
    """
    number = hash_key(key)
    asked = number % partitions
    if asked == place or place >= partitions:
        return None
    return None if any(number % count == place for count in range(partitions, place, -1)) else asked
