"""OpPositions: where in OP a take-over has to begin, for it to know of every finished message above the watermark."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection


class OpPositions:
    """OP records that name something at or above the low watermark, and all behind the first of them."""

    def __init__(self, next_op: int) -> None:
        # OP offset of each, and the highest half offset that it names.
        self._records: deque[tuple[int, int]] = deque()
        self._next = next_op

    @property
    def start(self) -> int:
        """OP offset from which a take-over must replay: that of the first record that names an offset >= watermark."""
        return self._records[0][0] if self._records else self._next

    @property
    def end(self) -> int:
        """OP goes at least up to here, as far as its records are known."""
        return self._next

    def count_from(self, op_offset: int) -> int:
        """How many OP records there are from this one on, at or above `start`."""
        if op_offset <= self.start:
            return len(self._records)
        return sum(offset >= op_offset for offset, _ in self._records)

    def restore(self, op_offset: int, half_offsets: Collection[int], *, is_needed: bool) -> None:
        """Take in one OP record, in the order of OP. `is_needed`: it names something at or above the watermark."""
        if is_needed or self._records:
            # From the first one on every record is counted, and `advance` looks at the first only.
            self._records.append((op_offset, max(half_offsets, default=-1)))
        self._next = op_offset + 1

    def note(self, op_offset: int, half_offsets: Collection[int]) -> None:
        """Where an OP record of ours landed; negative when the producer was not told. To be called before `advance`."""
        if op_offset < 0:
            # At the earliest behind the last one that we know of; a take-over then replays a little more.
            op_offset = max(self._next - 1, 0)
        self._records.append((op_offset, max(half_offsets)))
        # Its transaction is committed, so that the marker takes an offset behind it, and our next one lands above that.
        # To count it makes a difference when all of OP has expired and the log begins behind the marker.
        self._next = max(self._next, op_offset + 2)

    def advance(self, watermark: int) -> None:
        """The low watermark has moved."""
        while self._records and self._records[0][1] < watermark:
            self._records.popleft()
