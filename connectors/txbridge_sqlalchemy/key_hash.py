"""The hashes by which databases spread keys over the lanes of an outbox, in Python.

A relay's statements hash the key in the database (outbox_dialects.py). A client that sends directly has to choose the
half partition of the same number before it asks the database anything.
"""

from __future__ import annotations

import zlib

_32_BITS = 0xFFFFFFFF
_31_BITS = 0x7FFFFFFF


def hash_key(dialect: str, key: bytes) -> int:
    """What `OutboxDialect.hash_of` returns for this key in a column of bytes, on a database of this name."""
    if dialect == "postgresql":
        return hash_like_postgres(key.hex().encode()) & _31_BITS
    return 0 if dialect == "sqlite" else zlib.crc32(key) & _31_BITS


def hash_like_postgres(data: bytes) -> int:
    """PostgreSQL's `hash_any`, which is `hashtext` without its sign: Bob Jenkins' lookup3, a little changed."""
    a = b = c = (0x9E3779B9 + len(data) + 3923095) & _32_BITS
    whole = len(data) // 12 * 12
    for at in range(0, whole, 12):
        a = (a + int.from_bytes(data[at : at + 4], "little")) & _32_BITS
        b = (b + int.from_bytes(data[at + 4 : at + 8], "little")) & _32_BITS
        c = (c + int.from_bytes(data[at + 8 : at + 12], "little")) & _32_BITS
        a, c = (a - c ^ _turn(c, 4)) & _32_BITS, c + b & _32_BITS
        b, a = (b - a ^ _turn(a, 6)) & _32_BITS, a + c & _32_BITS
        c, b = (c - b ^ _turn(b, 8)) & _32_BITS, b + a & _32_BITS
        a, c = (a - c ^ _turn(c, 16)) & _32_BITS, c + b & _32_BITS
        b, a = (b - a ^ _turn(a, 19)) & _32_BITS, a + c & _32_BITS
        c, b = (c - b ^ _turn(b, 4)) & _32_BITS, b + a & _32_BITS
    rest = data[whole:]
    a = a + int.from_bytes(rest[:4], "little") & _32_BITS
    b = b + int.from_bytes(rest[4:8], "little") & _32_BITS
    # The lowest byte of c is kept for the length.
    c = c + (int.from_bytes(rest[8:], "little") << 8) & _32_BITS
    c = (c ^ b) - _turn(b, 14) & _32_BITS
    a = (a ^ c) - _turn(c, 11) & _32_BITS
    b = (b ^ a) - _turn(a, 25) & _32_BITS
    c = (c ^ b) - _turn(b, 16) & _32_BITS
    a = (a ^ c) - _turn(c, 4) & _32_BITS
    b = (b ^ a) - _turn(a, 14) & _32_BITS
    return (c ^ b) - _turn(b, 24) & _32_BITS


def _turn(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _32_BITS
