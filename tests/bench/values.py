"""Values that do not compress: the worker writes with lz4, and equal bytes would cost Kafka and the reader nothing."""

from __future__ import annotations

from random import Random

#: lz4 looks back 64 KiB, so bytes that repeat after this many are new to it.
_POOL = 1024 * 1024


class Values:
    """Values of one size by number, cut from random bytes, which is as cheap as a copy."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._places = max(1, _POOL // size)
        self._pool = Random(size).randbytes(self._places * size)

    def __getitem__(self, number: int) -> bytes:
        start = number % self._places * self._size
        return self._pool[start : start + self._size]
