"""How far the check requests of a partition are processed, when they finish in any order."""

from __future__ import annotations

from collections import deque


class CheckOffsets:
    """Offsets taken and finished, per partition. What is committed is followed by nothing unfinished before it."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def take(self, partition: int, offset: int) -> object:
        """A request was read. Returns what `finish` wants: it is void once the partition was given away."""
        assigned = self._partitions.setdefault(partition, _Partition(offset))
        assigned.taken.append(offset)
        return assigned

    def finish(self, assigned: object, partition: int, offset: int) -> None:
        """A request is answered."""
        current = self._partitions.get(partition)
        if current is not assigned or current is None:
            # The partition went to another member meanwhile (and perhaps came back): its requests are read again.
            return
        current.finished.add(offset)
        while current.taken and current.taken[0] in current.finished:
            offset = current.taken.popleft()
            current.finished.remove(offset)
            current.position = offset + 1

    def drop(self, partition: int) -> None:
        """The partition is another member's now."""
        self._partitions.pop(partition, None)

    def to_commit(self) -> dict[int, int]:
        """The positions that moved since they were committed."""
        return {
            partition: state.position
            for partition, state in self._partitions.items()
            if state.position > state.committed
        }

    def committed(self, positions: dict[int, int]) -> None:
        for partition, position in positions.items():
            if partition in self._partitions:
                self._partitions[partition].committed = position


class _Partition:
    __slots__ = ("committed", "finished", "position", "taken")

    def __init__(self, first: int) -> None:
        self.taken: deque[int] = deque()
        self.finished: set[int] = set()
        self.position = self.committed = first
