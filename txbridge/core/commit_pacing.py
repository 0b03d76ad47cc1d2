"""CommitPacing: the pause after a small Kafka transaction, which lets the next one hold more messages.

A Kafka transaction costs Kafka and the worker a few milliseconds of processor time, for one message or a hundred. While
the processors have time to spare, waiting gains nothing. Once they have none, a transaction takes longer than before. A
worker that then begins the next one at once takes the processors from the callers that make its messages.
"""

from __future__ import annotations

import math

#: A transaction of this many messages pays for itself: there is more work than time, and waiting would only add to it.
_LARGE = 1_000
#: Time of each message (s): as much as a worker needs for it on a slow machine (docs/performance.md).
_EACH_S = 25e-6
#: A transaction without contention may take this many times as long as the fastest.
_USUAL = 1.5
#: The pause is the time beyond that usual time, times this factor. Kafka and the callers, which had to wait as well,
#: catch up in it.
_FACTOR = 2
#: Longest time (s) that a message waits for others. A reader hardly notices it. A hundred callers that wait for their
#: answers fill it.
_LONGEST_S = 0.025
#: The fastest transaction is that of this window (s) and the one before. That is long enough to include a quiet moment,
#: and short enough to notice that Kafka has become slower for good.
_WINDOW_S = 10.0


class CommitPacing:
    """Pauses between the Kafka transactions of a partition, based on the fastest recent one. Asks no clock."""

    def __init__(self) -> None:
        self._fastest = self._fastest_before = math.inf
        self._window_ends = -math.inf

    def rest_after(self, now: float, seconds: float, messages: int) -> float:
        """Seconds to pause at `now` (s), after a transaction that took `seconds` and had about this many messages."""
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
