"""Knowledge of the checker about an owner beyond the logs: Kafka's answers to it about groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: Greatest age of an answer that a group has live members, at the time when the check is written (ms). Pauses of the
#: process do not count. The owner uses the answer for 2 s, and writing takes up to a transaction's time-out.
_ALIVE_FOR = 25_000


@dataclass(slots=True)
class Witness:
    """The answers to one worker process."""

    started: int
    world_now: Callable[[], int]
    #: Total time for which it was paused (ms).
    paused: int = 0
    #: By group: time of Kafka's last answer with live members, and `paused` at that time.
    alive: dict[str, tuple[int, int]] = field(default_factory=dict)

    #: By group: time of Kafka's first answer without members since then, if that answer was not late.
    dead: dict[str, int] = field(default_factory=dict)

    def told(self, group: str, members: int, *, late: bool) -> None:
        """Note an answer of Kafka about a group."""
        if members:
            self.alive[group] = (self.world_now(), self.paused)
            self.dead.pop(group, None)
        elif not late:
            self.dead.setdefault(group, self.world_now())

    def saw_alive(self, group: str, began: int) -> bool:
        """Whether the owner could believe, in a Kafka transaction begun then, that this group has live members."""
        if group not in self.alive or self.dead.get(group, began) < began:
            return False
        when, paused = self.alive[group]
        return self.world_now() - when - (self.paused - paused) <= _ALIVE_FOR
