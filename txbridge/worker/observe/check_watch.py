"""Watch for overdue checks: checks that have been due for long, without a dead group as the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txbridge.kafka.environment import Outside
from txbridge.log import get_logger

#: By then a coordinator's election, a broker's restart and the first back-off of a blocked topic are over. RocketMQ's
#: interval makes every check up to half a minute late anyway.
_TELL_AFTER_S = 30.0

_log = get_logger("txbridge.worker")


class CheckWatch:
    """Keeps, by producer group, the time since which its checks wait although Kafka has not called the group dead.

    One thread reports what happens; any thread may read `overdue`.
    """

    def __init__(self, partition: int, outside: Outside) -> None:
        self._partition = partition
        self._outside = outside
        #: Monotonic time (s) since which checks wait, by group.
        self._waiting: dict[str, float] = {}
        #: Monotonic time (s) since which a round waits for END to be applied.
        self._round_since: float | None = None
        self._oldest: float | None = None
        self._told = False

    @property
    def overdue(self) -> float:
        """Seconds for which the oldest check or round has waited; 0 when none waits."""
        oldest = self._oldest
        return 0.0 if oldest is None else max(0.0, self._outside.monotonic() - oldest)

    def round_waits(self, why: str) -> None:
        """Note that something is due and that its round has to wait for END."""
        if self._round_since is None:
            self._round_since = self._outside.monotonic()
        self._look_again({"": why})

    def round_done(self, waiting: Mapping[str, str]) -> None:
        """Note that a round was drafted. `waiting`: groups with due checks that may be possible, each with a reason."""
        now = self._outside.monotonic()
        self._round_since = None
        self._waiting = {group: self._waiting.get(group, now) for group in waiting}
        self._look_again(waiting)

    def note_sent(self, groups: Iterable[str]) -> None:
        """Note that checks for these groups were committed."""
        for group in groups:
            self._waiting.pop(group, None)
        self._look_again({})

    def _look_again(self, reasons: Mapping[str, str]) -> None:
        since = [*self._waiting.values(), *(() if self._round_since is None else (self._round_since,))]
        self._oldest = min(since, default=None)
        if self._oldest is None:
            if self._told:
                self._told = False
                _log.info("checks_go_on", partition=self._partition)
        elif not self._told and reasons and self.overdue > _TELL_AFTER_S:
            self._told = True
            group = min(self._waiting, key=self._waiting.__getitem__, default="")
            group = group if group in reasons else next(iter(reasons))
            _log.warning(
                "checks_overdue",
                partition=self._partition,
                group=group or None,
                groups=len(self._waiting),
                seconds=round(self.overdue),
                error=reasons[group],
            )
