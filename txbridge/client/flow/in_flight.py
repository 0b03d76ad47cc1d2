"""How much may be under way at once: pure bookkeeping, without threads, loops and Kafka."""

from __future__ import annotations

#: At 50,000 transactions a second, what is on its way for 40 ms. More would not be faster, but slower: at about 4 KB
#: beside its message, ten thousand no longer fit into a processor's caches, and each cost a third more.
MAX_NUMBER = 2_000
#: Bytes of values: large messages must not add up to gigabytes. At 10,000 a second of 1 KB it is six seconds.
MAX_BYTES = 64 * 1024 * 1024


class InFlight:
    """Attempts from their call to their decision. Not thread-safe."""

    def __init__(self, max_number: int = MAX_NUMBER, max_bytes: int = MAX_BYTES) -> None:
        self._max_number, self._max_bytes = max_number, max_bytes
        self.number = 0
        self._bytes = 0
        #: From the limit down to the half of it: those who wait for room then wake to room for many, not for one each.
        self.is_full = False
        #: Attempts between two marks share an epoch, so that a mark costs nothing for each of them.
        self._epoch = 0
        self._left: dict[int, int] = {}

    def add(self, size: int) -> int:
        """Another one, of `size` bytes; returns its epoch."""
        left = self._left.get(self._epoch, 0) + 1
        # From here on nothing is called: a signal interrupts only at calls, and either all of this is counted or none.
        self.number += 1
        self._bytes += size
        if self.number >= self._max_number or self._bytes >= self._max_bytes:
            self.is_full = True
        self._left[self._epoch] = left
        return self._epoch

    def remove(self, epoch: int, size: int) -> bool:
        """One is over. Returns whether those who wait, for room or for a mark, should look again."""
        self.number -= 1
        self._bytes -= size
        left = self._left[epoch] = self._left[epoch] - 1
        if not left:
            del self._left[epoch]
        if self.is_full and 2 * self.number <= self._max_number and 2 * self._bytes <= self._max_bytes:
            self.is_full = False
            return True
        return not left

    @property
    def room(self) -> int:
        """How many more may be added now."""
        return 0 if self.is_full else self._max_number - self.number

    def mark(self) -> int:
        """Everything added so far, for `left_of`."""
        self._epoch += 1
        return self._epoch - 1

    def left_of(self, mark: int) -> int:
        """How many of those added before the mark are not over."""
        return sum(left for epoch, left in self._left.items() if epoch <= mark)
