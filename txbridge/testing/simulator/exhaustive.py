"""Every schedule of a small scope: two producers with a transaction each, one owner, and at most one crash of it.

At every I/O call of the owner the search tries what can matter to it: the call goes on, a producer takes its next step,
a transaction marker is written, the owner crashes and a new one comes up. Schedules that lead to the same state are
followed once: a state is what stands in Kafka, how far the producers are, and all that the living owner has seen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.testing.simulator.actors import EFFECT
from txbridge.testing.simulator.applications import COMMIT, ROLLBACK
from txbridge.testing.simulator.checker import Checker, Violation
from txbridge.testing.simulator.model import Times
from txbridge.testing.simulator.process import Process
from txbridge.testing.simulator.world import World

_HOUR = 3_600_000
_REAL = "orders"


@dataclass(slots=True)
class Explored:
    """What a search has done."""

    states: int = 0
    #: Schedules followed to their end, and those that came upon a state that was known.
    complete: int = 0
    merged: int = 0
    violation: str | None = None
    #: The choices that led to it: o owner, a and b producers, m marker, t time, x crash.
    schedule: str = ""


class _Scope:
    """One run under a given schedule."""

    def __init__(self, decisions: Sequence[int], crashes: int) -> None:
        self.world = world = World(0)
        world.latency = 0
        world.histories = {}
        self.names = Names()
        # Without refused records and aborts an owner has done all that it knows when it asks for more of END.
        world.rests_at = self.names.end
        cluster = world.cluster
        for topic in (self.names.half, self.names.end, self.names.op, self.names.offset, self.names.discard, _REAL):
            cluster.create_topic(topic, 1)
        self.policy = CheckPolicy(transaction_timeout=_HOUR, park_after=_HOUR)
        times = Times(_HOUR, _HOUR, 15, 100 * _HOUR, _HOUR)
        self.checker = Checker(world, self.names, 1, times)
        self.decisions = decisions
        #: Steps taken, and the half offset once it is known.
        self.done = [0, 0]
        self.offsets = [-1, -1]
        self.crashes_left = crashes
        self.owners: list[Process] = []
        self._start()

    def _start(self) -> None:
        process = Process(self.world, self.names, self.policy, 0, f"w{len(self.owners) + 1}")
        self.checker.witnesses[process.name] = process.witness
        self.owners.append(process)

    def options(self) -> str:
        """The choices there are; the first is the usual one."""
        actor = self.owners[-1].actor
        if self.is_done:
            return "x" if self.crashes_left else ""
        found = ""
        touches = None
        if actor.is_runnable:
            found, touches = "o", actor.touches
        # Two that touch different things may change places: only the order of those that touch the same is tried. A
        # crash matters before the next effect, not between two reads.
        if touches in {None, self.names.half, self.names.end}:
            found += "".join(name for name, done in zip("ab", self.done, strict=True) if done < 2)
        due = self.world.cluster.markers_due()
        if due and (touches in {None, EFFECT} or any(place[0] == touches for _, place in due)):
            found += "m"
        if not found:
            found = "t"
        return found + ("x" if self.crashes_left and touches in {None, EFFECT} else "")

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return (
            self.done == [2, 2]
            and not self.world.cluster.markers_due()
            and self.owners[-1].owner.status.serving
            and not self.checker.unfinished(set(), set())
        )

    def take(self, choice: str) -> None:
        """Do it. Raises Violation."""
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
                self._start()
            case _:
                self._client("ab".index(choice))
        if self.checker.violation is not None:
            raise self.checker.violation

    def _client(self, number: int) -> None:
        cluster, transaction_id = self.world.cluster, f"{number:032X}"
        if self.done[number] == 0:
            headers = [("TXB_V", b"1"), ("TRAN_MSG", b"true"), ("REAL_TOPIC", _REAL.encode()), ("PGROUP", b"group")]
            headers.append(("UNIQ_KEY", transaction_id.encode()))
            place = (self.names.half, 0)
            self.offsets[number] = cluster.append_plain(place, (b"key", b"value", headers, 0))
        else:
            value = f"{self.offsets[number]},{transaction_id},{self.decisions[number]}".encode()
            headers = [("TXB_V", b"1"), ("PGROUP", b"group"), ("SOURCE", b"client")]
            cluster.append_plain((self.names.end, 0), (None, value, headers, 0))
        self.done[number] += 1

    def key(self) -> tuple[object, ...]:
        """Equal for states from which the same follows."""
        world, owner = self.world, self.owners[-1]
        logs = tuple(
            (place, tuple((one.kind, one.key, one.value, one.epoch) for one in log.entries), tuple(log.open.items()))
            for place, log in world.cluster.logs.items()
            if log.entries
        )
        coordinated = tuple(
            (one.epoch, one.state, tuple(one.places.items())) for one in world.cluster.coordinated.values()
        )
        history = (world.histories or {}).get(owner.name, 0)
        waits = owner.actor.waits_until, owner.actor.touches
        return logs, coordinated, history, waits, tuple(self.done), self.crashes_left, owner.name, world.now

    def close(self) -> None:
        for process in self.owners:
            process.actor.crash()


def explore(decisions: Sequence[int] = (COMMIT, ROLLBACK), crashes: int = 1, most_states: int = 1_000_000) -> Explored:
    """Follow every schedule; stops at the first violation, or when there are too many states."""
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    explored, known = Explored(), set[int]()
    stack = [""]
    while stack and explored.states < most_states and explored.violation is None:
        schedule = stack.pop()
        scope = _Scope(decisions, crashes)
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
                    explored.complete += 1
                if not options:
                    break
                stack.extend(schedule + other for other in options[1:])
                schedule += options[0]
                scope.take(options[0])
        except Violation as violation:
            explored.violation, explored.schedule = str(violation), schedule
        finally:
            scope.close()
    return explored


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent


def main() -> int:
    """Search with both transactions committed, and with one rolled back; 0 when no promise was broken."""
    for decisions in ((COMMIT, COMMIT), (COMMIT, ROLLBACK)):
        started = time.process_time()
        explored = explore(decisions)
        print(
            f"decisions {decisions}: {explored.states} states, {explored.complete} complete schedules, "
            f"{explored.merged} that led to a known state, {time.process_time() - started:.1f} s",
            flush=True,
        )
        if explored.violation is not None:
            print(f"VIOLATION {explored.violation}\nschedule: {explored.schedule}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
