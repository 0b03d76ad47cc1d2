"""BrokerClock: what time it is, for all that falls due, from the brokers' clocks and this machine's."""

from __future__ import annotations

import math
from typing import NamedTuple

from txbridge.kafka.environment import Outside
from txbridge.log import get_logger

#: Clocks that differ by more are wrong (ms). Machines with NTP agree within milliseconds, and one that was set by hand
#: within a minute. What a minute can do is little: the first check comes after six seconds, the last one after eight
#: minutes, and a message expires after 72 hours.
BOUND_MS = 60_000
#: While they differ, the brokers are asked again so often: the machine may only have slept.
_ASK_AGAIN_S = 10.0

_log = get_logger("txbridge.worker")


def due_by(own: int, theirs: int) -> int:
    """The time until which something is due (ms), from this machine's clock and the brokers'."""
    return theirs if abs(own - theirs) <= BOUND_MS else min(own, theirs)


class _Append(NamedTuple):
    """What is known of the append of a record."""

    #: By the broker's clock (ms).
    at: int
    #: When its report came, and when its Kafka transaction began, by a clock that nobody sets (s).
    known: float
    began: float


class BrokerClock:
    """The age of a message counts from its append time, which is a broker's. So what falls due is compared with theirs.

    Each checkpoint that this worker writes comes back with its append time. From there on the time is told by a
    clock that nobody sets. As long as it agrees with this machine's clock, nothing depends on the latter. When they
    differ nobody knows which of them is wrong, and what is due by both is due: a clock that is ahead would check,
    discard and forget what is not, and one that is behind only delays it. Either is told.

    One thread uses it; any may ask for `ahead_ms` and `problem`.
    """

    def __init__(self, partition: int, outside: Outside) -> None:
        self._partition = partition
        self._outside = outside
        #: Of the latest checkpoint.
        self._latest: _Append | None = None
        self._told = False

    def appended(self, milliseconds: int, began: float | None = None) -> None:
        """A broker has just stored a checkpoint, at this time of its clock.

        `began` (s, monotonic): when its Kafka transaction began; without it: now.
        """
        known = self._outside.monotonic()
        self._latest = _Append(milliseconds, known, known if began is None else began)
        problem = self.problem
        if (problem is not None) is not self._told:
            self._told = problem is not None
            if problem is not None:
                _log.error("clock_differs", partition=self._partition, error=problem)
            else:
                _log.info("clock_agrees", partition=self._partition)

    def now(self) -> int:
        """The time that is written down (ms): the brokers', or a little earlier."""
        theirs = self._theirs()
        return (self._outside.now() if theirs is None else theirs) + self._outside.shift()

    def now_at_latest(self) -> int:
        """The same (ms), or a little later: what has to pass from now on has passed by their clock, too."""
        if self._latest is None:
            return self.now()
        since = self._outside.monotonic() - self._latest.began
        return self._latest.at + math.ceil(since * 1000) + self._outside.shift()

    def due(self) -> int:
        """What falls due until this time is due (ms)."""
        own, theirs = self._outside.now(), self._theirs()
        return (own if theirs is None else due_by(own, theirs)) + self._outside.shift()

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the brokers'; None before anything was written."""
        theirs = self._theirs()
        return None if theirs is None else self._outside.now() - theirs

    @property
    def problem(self) -> str | None:
        """That the clocks differ too much, for a person; None when they agree."""
        ahead = self.ahead_ms
        if ahead is None or abs(ahead) <= BOUND_MS:
            return None
        how = f"{abs(ahead) // 1000} s {'ahead of' if ahead > 0 else 'behind'}"
        return (
            f"the clock of this machine is {how} that of the broker: one of them is wrong, set it right (NTP). "
            f"Decisions are delivered; checks and discards go by the earlier clock"
        )

    @property
    def should_ask_again(self) -> bool:
        """Whether a checkpoint should be written for the sake of its time."""
        latest = self._latest
        return (
            latest is not None and latest.known + _ASK_AGAIN_S <= self._outside.monotonic() and self.problem is not None
        )

    def _theirs(self) -> int | None:
        latest = self._latest
        if latest is None:
            return None
        return latest.at + int((self._outside.monotonic() - latest.known) * 1000)
