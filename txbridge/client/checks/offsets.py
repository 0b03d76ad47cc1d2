"""Offsets of check requests that may be committed, while requests finish in any order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


class CheckOffsets:
    """Offsets taken and finished, per partition. All requests below a committed position are finished."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def take_request(self, partition: int, offset: int) -> object:
        """Take a request that was read. Returns a token for `finish_request`, void once the partition is given away."""
        assigned = self._partitions.setdefault(partition, _Partition(offset, offset))
        assigned.taken.append(offset)
        return assigned

    def finish_request(self, assigned: object, partition: int, offset: int) -> None:
        """Finish a request that is answered."""
        current = self._partitions.get(partition)
        if current is not assigned or current is None:
            # The partition went to another member meanwhile (and perhaps came back): its requests are read again.
            return
        current.finished.add(offset)
        while current.taken and current.taken[0] in current.finished:
            offset = current.taken.popleft()
            current.finished.remove(offset)
            current.position = offset + 1

    def drop_partition(self, partition: int) -> None:
        """Forget a partition that another member has now."""
        self._partitions.pop(partition, None)

    def to_commit(self) -> dict[int, int]:
        """Return the positions that moved since their last commit."""
        return {
            partition: state.position
            for partition, state in self._partitions.items()
            if state.position > state.committed
        }

    def note_commit(self, positions: dict[int, int]) -> None:
        for partition, position in positions.items():
            if partition in self._partitions:
                self._partitions[partition].committed = position


@dataclass(slots=True, eq=False)
class _Partition:
    position: int
    committed: int
    taken: deque[int] = field(default_factory=deque)
    finished: set[int] = field(default_factory=set)
