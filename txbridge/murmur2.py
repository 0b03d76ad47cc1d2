"""Kafka's hash of a key: murmur2, as in the Java producer."""

from __future__ import annotations

import struct

_SEED, _FACTOR, _WORD = 0x9747_B28C, 0x5BD1_E995, 0xFFFF_FFFF


def hash_key(key: bytes) -> int:
    """The hash without its sign, as the producer takes it modulo the number of partitions."""
    mixed = _SEED ^ len(key)
    for part in struct.unpack_from(f"<{len(key) // 4}I", key):
        word = part * _FACTOR & _WORD
        mixed = (mixed * _FACTOR ^ (word ^ word >> 24) * _FACTOR) & _WORD
    if rest := len(key) % 4:
        mixed = (mixed ^ int.from_bytes(key[-rest:], "little")) * _FACTOR & _WORD
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _WORD
    return (mixed ^ mixed >> 15) & 0x7FFF_FFFF
