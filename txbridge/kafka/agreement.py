"""Since when all answers say the same, without a gap."""

from __future__ import annotations


class Agreement:
    """Whether enough answers, over so many seconds, have said one thing, and none the contrary.

    The time between the first and the last alone proves nothing: a process that stood still has heard nothing
    meanwhile. So there are at least `answers` of them, and when more than `most_apart` seconds lie between two, this
    process or Kafka stood still, and the count begins anew.
    """

    def __init__(self, seconds: float, answers: int, most_apart: float) -> None:
        self._seconds, self._answers, self._most_apart = seconds, answers, most_apart
        self._count = 0
        self._since = self._last = float("-inf")

    def note(self, now: float) -> bool:
        """One more answer says it; whether they are enough now."""
        if self._count == 0 or now - self._last > self._most_apart:
            self._count, self._since = 0, now
        self._count += 1
        self._last = now
        return self._count >= self._answers and now - self._since >= self._seconds

    def contradict(self) -> None:
        """An answer says something else."""
        self._count = 0
