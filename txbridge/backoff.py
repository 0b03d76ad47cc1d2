"""Back-off: pauses between failed attempts, and what a program waits for at its start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from txbridge.errors import DatabaseUnreachableError, KafkaUnreachableError

#: Pauses (s) of a program that waits at its start.
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 10.0
#: What is logged when it waits, and when that is over.
EVENTS: dict[type[Exception], tuple[str, str]] = {
    KafkaUnreachableError: ("kafka_unreachable", "kafka_reachable"),
    DatabaseUnreachableError: ("database_unreachable", "database_reachable"),
}
_NEXT = "it keeps trying"

_T = TypeVar("_T")


class Backoff:
    """Pauses in seconds. Each one is twice as long as the one before, up to `longest`."""

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        #: The next pause (s).
        self.pause = first

    def next(self) -> float:
        """Return the pause (s) before the next attempt, and lengthen the one after it."""
        pause = self.pause
        self.pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """Start again with the first pause, after an attempt that worked."""
        self.pause = self._first


def keep_trying(attempt: Callable[[], _T], log: Any, servers: str) -> _T:
    """Return what `attempt` returns. It is called again while Kafka or a database gives no connection, which is logged.

    A wrong password counts as that, as it is changed in two places, one after the other. Raises every other error.
    """
    backoff, there = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S), ""
    while True:
        try:
            found = attempt()
        except tuple(EVENTS) as error:
            if not there:
                away, there = EVENTS[type(error)]
                log.warning(away, servers=servers, error=str(error), next=_NEXT)
            time.sleep(backoff.next())
        else:
            if there:
                log.info(there, servers=servers)
            return found
