"""BrokerClock: the time by which messages fall due, from the brokers' clocks and this machine's."""

from __future__ import annotations

import math
from typing import NamedTuple

from txbridge.kafka.environment import Outside
from txbridge.log import get_logger

#: Largest difference of clocks that are right (ms). Machines with NTP agree within milliseconds, and one that was set
#: by hand within a minute. A minute does little harm: the first check comes after six seconds, the last one after eight
#: minutes, and a message expires after 72 hours.
BOUND_MS = 60_000
#: Interval (s) at which brokers are asked again while the clocks differ: this machine may only have been suspended.
_ASK_AGAIN_S = 10.0

_log = get_logger("txbridge.worker")


def due_by(own: int, theirs: int) -> int:
    """The time that due times are compared with (ms): the brokers', or the earlier one when the clocks differ."""
    return theirs if abs(own - theirs) <= BOUND_MS else min(own, theirs)


class _Append(NamedTuple):
    """The append of a record, by two clocks."""

    #: Append time by the broker's clock (ms).
    at: int
    #: Times of its delivery report, and of the beginning of its Kafka transaction, by the monotonic clock (s).
    known: float
    began: float


class BrokerClock:
    """The brokers' time. The age of a message counts from its append time, so due times are compared with this one.

    The delivery report of each checkpoint that this worker writes has its append time. The monotonic clock counts on
    from there. As long as the result agrees with this machine's clock, nothing depends on the latter. When they differ,
    nobody knows which one is wrong, and a step is due only when it is due by both. A clock that is ahead would check,
    discard and drop messages too early; one that is behind only delays that. Both cases are logged.

    One thread uses it. Any thread may read `ahead_ms` and `problem`.
    """

    def __init__(self, partition: int, outside: Outside) -> None:
        self._partition = partition
        self._outside = outside
        #: The append of the latest checkpoint.
        self._latest: _Append | None = None
        self._is_reported = False

    def note_append(self, milliseconds: int, began: float | None = None) -> None:
        """Note that a broker has just stored a checkpoint, at this time of its clock.

        `began` is when its Kafka transaction began (s, monotonic); None means now.
        """
        known = self._outside.monotonic()
        self._latest = _Append(milliseconds, known, known if began is None else began)
        problem = self.problem
        if (problem is not None) is not self._is_reported:
            self._is_reported = problem is not None
            if problem is not None:
                _log.error("clock_differs", partition=self._partition, error=problem)
            else:
                _log.info("clock_agrees", partition=self._partition)

    def now(self) -> int:
        """The time to record (ms): the brokers' time, or a little earlier."""
        theirs = self._brokers_time()
        return (self._outside.now() if theirs is None else theirs) + self._outside.shift()

    def now_at_latest(self) -> int:
        """The brokers' time (ms), or a little later: a wait that counts from it is not too short by their clock."""
        if self._latest is None:
            return self.now()
        since = self._outside.monotonic() - self._latest.began
        return self._latest.at + math.ceil(since * 1000) + self._outside.shift()

    def due(self) -> int:
        """The time that due times are compared with (ms)."""
        own, theirs = self._outside.now(), self._brokers_time()
        return (own if theirs is None else due_by(own, theirs)) + self._outside.shift()

    @property
    def ahead_ms(self) -> int | None:
        """Milliseconds by which this machine's clock is ahead of the brokers'; None before anything was written."""
        theirs = self._brokers_time()
        return None if theirs is None else self._outside.now() - theirs

    @property
    def problem(self) -> str | None:
        """A text for people when the clocks differ too much; None when they agree."""
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
        """Whether a checkpoint should be written only to learn its append time."""
        latest = self._latest
        return (
            latest is not None and latest.known + _ASK_AGAIN_S <= self._outside.monotonic() and self.problem is not None
        )

    def _brokers_time(self) -> int | None:
        latest = self._latest
        if latest is None:
            return None
        return latest.at + int((self._outside.monotonic() - latest.known) * 1000)
