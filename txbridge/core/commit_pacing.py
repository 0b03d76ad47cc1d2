"""How long to leave Kafka alone after a small Kafka transaction, so that the next one holds more.

A Kafka transaction costs Kafka and the worker a few milliseconds of their processors, whether it holds one message or a
hundred. While those have time to spare, nothing is won by waiting. Once they have none, a transaction takes longer than
it did; whoever then begins the next one at once takes the processors from the callers that make its messages.
"""

from __future__ import annotations

import math

#: A transaction of so many messages pays for itself: there is more work than time, and waiting would only add to it.
_LARGE = 1_000
#: What a message itself takes (s): as much as a worker needs for it on a slow machine (docs/performance.md).
_EACH_S = 25e-6
#: Half as long again as the fastest is what a transaction may well take with nobody in its way.
_USUAL = 1.5
#: What it took longer than that, times this, is the rest: Kafka and the callers, who had to wait as well, catch up.
_FACTOR = 2
#: No message waits longer than this (s) for the sake of the others; a reader hardly notices, and a hundred callers that
#: wait for their answers fill it.
_LONGEST_S = 0.025
#: The fastest is that of this window (s) and of the one before: long enough that a quiet moment is among them, short
#: enough to notice that Kafka has become slower for good.
_WINDOW_S = 10.0


class CommitPacing:
    """Knows how fast small Kafka transactions of a partition are at their best. Asks no clock."""

    def __init__(self) -> None:
        self._fastest = self._fastest_before = math.inf
        self._window_ends = -math.inf

    def rest_after(self, now: float, seconds: float, messages: int) -> float:
        """Seconds to rest at `now` (s), after one that took `seconds` and was about so many messages."""
        if now >= self._window_ends:
            was_silent = now >= self._window_ends + _WINDOW_S
            self._fastest_before = math.inf if was_silent else self._fastest
            self._fastest = math.inf
            self._window_ends = now + _WINDOW_S
        self._fastest = min(self._fastest, seconds)
        if messages >= _LARGE:
            return 0.0
        usual = _USUAL * min(self._fastest, self._fastest_before) + messages * _EACH_S
        return min(_FACTOR * max(0.0, seconds - usual), _LONGEST_S)
