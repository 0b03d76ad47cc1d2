"""What the checker may know of an owner beyond the logs: what Kafka told it about groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: An answer that somebody is alive may be this old when the check is written, pauses of the process not counted: it is
#: believed for 2 s, and writing takes up to a transaction's time-out (ms).
_ALIVE_FOR = 25_000


@dataclass(slots=True)
class Witness:
    """One worker process."""

    started: int
    world_now: Callable[[], int]
    #: How long it was paused in all (ms).
    paused: int = 0
    #: By group: when Kafka last told it that somebody is alive, and `paused` at that time.
    alive: dict[str, tuple[int, int]] = field(default_factory=dict)

    #: By group: when Kafka last told it at once, not late, that nobody is alive.
    dead: dict[str, int] = field(default_factory=dict)

    def told(self, group: str, members: int, *, late: bool) -> None:
        """Kafka has answered it about a group."""
        if members:
            self.alive[group] = (self.world_now(), self.paused)
            self.dead.pop(group, None)
        elif not late:
            self.dead.setdefault(group, self.world_now())

    def saw_alive(self, group: str, began: int) -> bool:
        """Whether it could believe, for a Kafka transaction begun then, that somebody of this group is alive."""
        if group not in self.alive or self.dead.get(group, began) < began:
            return False
        when, paused = self.alive[group]
        return self.world_now() - when - (self.paused - paused) <= _ALIVE_FOR
