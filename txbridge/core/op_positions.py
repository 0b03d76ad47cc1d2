"""OpPositions: the part of OP that a take-over reads, to know of every finished message above the watermark."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection


class OpPositions:
    """The first OP record that names an offset at or above the low watermark, and all records behind it."""

    def __init__(self, next_op: int) -> None:
        # OP offset of each, and the highest half offset that it names.
        self._records: deque[tuple[int, int]] = deque()
        self._next = next_op
        #: OP offset of the last known record; -1 when none is known.
        self.last = -1

    @property
    def start(self) -> int:
        """OP offset from which a take-over must replay: that of the first record that names an offset >= watermark."""
        return self._records[0][0] if self._records else self._next

    @property
    def end(self) -> int:
        """Lower bound of the end of OP, from the records that are known."""
        return self._next

    def count_from(self, op_offset: int) -> int:
        """Number of OP records from this one on, at or above `start`."""
        if op_offset <= self.start:
            return len(self._records)
        return sum(offset >= op_offset for offset, _ in self._records)

    def restore_record(self, op_offset: int, half_offsets: Collection[int], *, is_needed: bool) -> None:
        """Take in one OP record, in the order of OP. `is_needed`: it names something at or above the watermark."""
        if is_needed or self._records:
            # From the first needed record on, every record is counted. `advance_start` looks at the first only.
            self._records.append((op_offset, max(half_offsets, default=-1)))
        self.last, self._next = op_offset, op_offset + 1

    def note_record(self, op_offset: int, half_offsets: Collection[int]) -> None:
        """Note where an OP record of ours landed. `advance_start` comes after."""
        self._records.append((op_offset, max(half_offsets)))
        # Its transaction is committed, so the marker takes an offset behind it, and our next record lands above that.
        # This makes a difference when retention has deleted all of OP and the log begins behind the marker.
        self.last, self._next = op_offset, op_offset + 2

    def advance_start(self, watermark: int) -> None:
        """Drop the first records while they name nothing at or above the low watermark, which has moved."""
        while self._records and self._records[0][1] < watermark:
            self._records.popleft()
