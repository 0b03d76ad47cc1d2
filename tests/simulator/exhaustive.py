"""Every schedule of a small scope: two producers with a transaction each, and one crash of the owner, or one zombie.

At every I/O call of the owner the search tries all choices that can matter to it:

- The call goes on.
- A producer takes its next step.
- A transaction marker is written.
- The owner crashes and a new one starts.
- The owner is paused and another takes over. At any later moment the former one goes on until it waits.

Schedules that lead to the same state are followed once. A state consists of Kafka's content, the progress of the
producers, and all results that the living owners have seen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tests.simulator.actors import EFFECT
from tests.simulator.applications import COMMIT, ROLLBACK
from tests.simulator.checker import Violation
from tests.simulator.process import Process
from tests.simulator.small_world import SmallWorld

_REAL = "orders"
#: More I/O calls than any turn of an owner has, so that it goes on until it waits.
_UNTIL_IT_WAITS = 1_000


@dataclass(slots=True)
class Explored:
    """Results of a search."""

    states: int = 0
    #: Number of schedules that were followed to their end, and of those that reached a known state.
    complete: int = 0
    merged: int = 0
    violation: str | None = None
    #: Choices that led to the violation: o owner, a and b producers, m marker, t time, x crash, n another owner, z the
    #: former one.
    schedule: str = ""


class _Scope(SmallWorld):
    """One run under a given schedule."""

    def __init__(self, decisions: Sequence[int], crashes: int, zombies: int) -> None:
        super().__init__(_REAL)
        self.world.latency = 0
        self.world.histories = {}
        # Without refused records and aborts, an owner that asks for more of END has nothing left to do.
        self.world.rests_at = self.names.end
        self.decisions = decisions
        #: Steps that each producer has taken, and its half offset once it is known.
        self.done = [0 for _ in decisions]
        self.offsets = [-1 for _ in decisions]
        self.crashes_left, self.zombies_left, self.resumes_left = crashes, zombies, zombies
        self.start_owner()

    def options(self) -> str:
        """The choices that there are. The first one is the usual one."""
        actor, zombies = self.owners[-1].actor, self._zombies()
        mishaps = ("x" if self.crashes_left else "") + ("n" if self.zombies_left else "")
        if self.is_done:
            return mishaps + ("z" if zombies else "")
        found = ""
        touches = None
        if actor.is_runnable:
            found, touches = "o", actor.touches
        if zombies:
            # Its effects can seldom change places with those of another process.
            found += "z" if touches in {None, EFFECT, self.names.offset, self.names.op} else ""
        # Calls that touch different topics may change places: only the order of those that touch the same one is tried.
        # A crash matters before the next effect, not between two reads. The former owner may read HALF and END as well.
        if zombies or touches in {None, self.names.half, self.names.end}:
            found += "".join(name for name, done in zip("ab", self.done, strict=False) if done < 2)
        due = self.world.cluster.markers_due()
        if due and (touches in {None, EFFECT} or any(place[0] == touches for _, place in due)):
            found += "m"
        if not found:
            found = "t"
        return found + (mishaps if touches in {None, EFFECT} else "")

    def _zombies(self) -> list[Process]:
        """Former owners that have not been resumed yet."""
        return [one for one in self.owners[:-1] if one.actor.is_runnable] if self.resumes_left else []

    @property
    def is_done(self) -> bool:
        """Whether all work is done."""
        return (
            all(done == 2 for done in self.done)
            and not self.world.cluster.markers_due()
            and self.owners[-1].owner.status.serving
            and not self.checker.unfinished(set(), set())
        )

    def take(self, choice: str) -> None:
        """Carry out a choice. Raises Violation."""
        world, owner = self.world, self.owners[-1]
        match choice:
            case "o":
                owner.actor.run(1)
            case "m":
                world.cluster.write_marker(*world.cluster.markers_due()[0])
            case "t":
                world.now = max(world.now + 1, owner.actor.waits_until or 0)
            case "x":
                self.crashes_left -= 1
                owner.actor.crash()
                self.start_owner()
            case "n":
                self.zombies_left -= 1
                owner.is_assigned = False
                self.start_owner()
            case "z":
                zombie = self._zombies()[0]
                self.resumes_left -= 1
                zombie.actor.run(_UNTIL_IT_WAITS)
            case _:
                self._client("ab".index(choice))
        if self.checker.violation is not None:
            raise self.checker.violation

    def _client(self, number: int) -> None:
        transaction_id = f"{number:032X}"
        if self.done[number] == 0:
            self.offsets[number] = self.prepare(_REAL, transaction_id)
        else:
            self.decide(self.offsets[number], transaction_id, self.decisions[number])
        self.done[number] += 1

    def key(self) -> tuple[object, ...]:
        """A key that is equal for states with the same future."""
        world, owner = self.world, self.owners[-1]
        logs = tuple(
            (place, tuple((one.kind, one.key, one.value, one.epoch) for one in log.entries), tuple(log.open.items()))
            for place, log in world.cluster.logs.items()
            if log.entries
        )
        coordinated = tuple(
            (one.epoch, one.state, tuple(one.places.items())) for one in world.cluster.coordinated.values()
        )
        owners = tuple(
            ((world.histories or {}).get(one.name, 0), one.actor.waits_until, one.actor.touches)
            for one in self.owners
            if not one.actor.has_ended
        )
        mishaps = self.crashes_left, self.zombies_left, self.resumes_left
        return logs, coordinated, owners, tuple(self.done), mishaps, owner.name, world.now


def explore(
    decisions: Sequence[int] = (COMMIT, ROLLBACK), *, crashes: int = 1, zombies: int = 0, most_states: int = 1_000_000
) -> Explored:
    """Follow every schedule. Stops at the first violation, or when there are too many states."""
    structlog.configure(processors=[_on_log], cache_logger_on_first_use=False)
    explored, known = Explored(), set[int]()
    stack = [""]
    while stack and explored.states < most_states and explored.violation is None:
        schedule = stack.pop()
        scope = _Scope(decisions, crashes, zombies)
        try:
            for choice in schedule:
                scope.take(choice)
            while True:
                key = hash(scope.key())
                if key in known:
                    explored.merged += 1
                    break
                known.add(key)
                explored.states += 1
                options = scope.options()
                if scope.is_done:
                    scope.checker.check_readers([(_REAL, 0)])
                    explored.complete += "z" not in options
                if not options:
                    break
                stack.extend(schedule + other for other in options[1:])
                schedule += options[0]
                scope.take(options[0])
        except (Violation, _UnexpectedError) as violation:
            explored.violation, explored.schedule = str(violation), schedule
        finally:
            scope.close()
    return explored


class _UnexpectedError(Exception):
    """The worker met an error that it does not know."""


def _on_log(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    if event["event"] == "unexpected_error":
        raise _UnexpectedError(f"unexpected error in the worker: {event.get('exc_info')!r}")
    raise structlog.DropEvent


def main() -> int:
    """Search with both transactions committed, and with one rolled back; 0 when no promise was broken."""
    for decisions, crashes, zombies in (((COMMIT,), 0, 1), ((COMMIT, ROLLBACK), 1, 0), ((COMMIT, COMMIT), 1, 0)):
        started = time.process_time()
        explored = explore(decisions, crashes=crashes, zombies=zombies)
        print(
            f"decisions {decisions}, {crashes} crash, {zombies} zombie: "
            f"{explored.states} states, {explored.complete} complete schedules, "
            f"{explored.merged} that led to a known state, {time.process_time() - started:.1f} s",
            flush=True,
        )
        if explored.violation is not None:
            print(f"VIOLATION {explored.violation}\nschedule: {explored.schedule}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
