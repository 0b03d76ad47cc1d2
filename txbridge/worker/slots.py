"""Room for partitions in this process: so many as its file descriptors suffice for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from txbridge.errors import TxBridgeError


class NoRoomError(TxBridgeError):
    """The process serves as many partitions as it can. One that it gives up makes room again."""


class PartitionSlots:
    """Counts the partitions that are served. Thread-safe. None is no limit."""

    def __init__(self, capacity: int | None = None, refusal: str = "") -> None:
        self._free = capacity
        self._refusal = refusal
        self._lock = threading.Lock()

    @contextmanager
    def one_slot(self) -> Iterator[None]:
        """Room for one partition within the block. Raises NoRoomError when there is none.

        Without it, half of the partition's clients would find no descriptor, and librdkafka would say only that a
        broker cannot be reached.
        """
        if self._free is None:
            yield
            return
        with self._lock:
            if self._free == 0:
                raise NoRoomError(self._refusal)
            self._free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
