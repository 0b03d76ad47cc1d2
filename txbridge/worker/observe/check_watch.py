"""CheckWatch: for how long checks have been due that nothing explains the absence of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txbridge.kafka.environment import Outside
from txbridge.log import get_logger

#: An election of a coordinator, a broker that restarts, a topic that is blocked for a first back-off: all of it is over
#: by then, and a check that comes half a minute late is what RocketMQ's interval makes of every check.
_TELL_AFTER_S = 30.0

_log = get_logger("txbridge.worker")


class CheckWatch:
    """Keeps, by producer group, since when its checks wait without an answer of Kafka's that nobody is alive there.

    One thread tells it what happens; any may ask for `overdue`.
    """

    def __init__(self, partition: int, outside: Outside) -> None:
        self._partition = partition
        self._outside = outside
        #: Since when, by group.
        self._waiting: dict[str, float] = {}
        #: Since when a round waits for END to be applied.
        self._round_since: float | None = None
        self._oldest: float | None = None
        self._told = False

    @property
    def overdue(self) -> float:
        """Seconds for which the longest of them has waited; 0 when none does."""
        oldest = self._oldest
        return 0.0 if oldest is None else max(0.0, self._outside.monotonic() - oldest)

    def round_waits(self, why: str) -> None:
        """Something is due, and a round has to wait for END."""
        if self._round_since is None:
            self._round_since = self._outside.monotonic()
        self._look({"": why})

    def round_done(self, waiting: Mapping[str, str]) -> None:
        """A round was drafted. `waiting`: groups whose checks are due and may be possible, and what they wait for."""
        now = self._outside.monotonic()
        self._round_since = None
        self._waiting = {group: self._waiting.get(group, now) for group in waiting}
        self._look(waiting)

    def sent(self, groups: Iterable[str]) -> None:
        """Kafka has checks for these groups."""
        for group in groups:
            self._waiting.pop(group, None)
        self._look({})

    def _look(self, reasons: Mapping[str, str]) -> None:
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
