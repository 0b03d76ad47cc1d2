"""Agreement of repeated answers: enough of them, over enough time, without a gap."""

from __future__ import annotations


class Agreement:
    """A test whether enough answers, over `seconds`, have said the same thing, and none the contrary.

    The time between the first and the last answer alone proves nothing: a process that stood still received none in
    between. So at least `answers` answers are needed. When more than `most_apart` seconds lie between two of them, this
    process or Kafka stood still, and the count starts again.
    """

    def __init__(self, seconds: float, answers: int, most_apart: float) -> None:
        self._seconds, self._answers, self._most_apart = seconds, answers, most_apart
        self._count = 0
        self._since = self._last = float("-inf")

    def note(self, now: float) -> bool:
        """Count one more answer that says it. Returns whether the answers are enough now."""
        if self._count == 0 or now - self._last > self._most_apart:
            self._count, self._since = 0, now
        self._count += 1
        self._last = now
        return self._count >= self._answers and now - self._since >= self._seconds

    def note_contradiction(self) -> None:
        """Note an answer that says something else: the count starts again."""
        self._count = 0
