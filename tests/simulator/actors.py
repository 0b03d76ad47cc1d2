"""Actors: code with an ordinary flow of control, each in a greenlet of its own, of which only one runs at a time.

An actor hands control back to the scheduler when it has made a given number of I/O calls (its fuel), or when it waits.
So the same choices of the scheduler give the same run, and owners interleave at every I/O call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from greenlet import getcurrent, greenlet

#: Marks an I/O call that changes something in Kafka.
EFFECT = "effect"


class Crashed(BaseException):
    """The process has died in the middle of its work."""


class Clock(Protocol):
    """The world's time, which passes with each I/O call (ms)."""

    now: int
    latency: int


class Actor:
    """One process. `body` runs in its greenlet until it returns or crashes."""

    def __init__(self, name: str, clock: Clock, body: Callable[[], None]) -> None:
        self.name = name
        self.is_dead = False
        self.has_ended = False
        self.is_paused = False
        self.fuel = 0
        #: End of the current wait, if there is one (ms of the world), and the condition that ends it early.
        self.waits_until: int | None = None
        self._ready: Callable[[], bool] | None = None
        #: Exception of the body: a defect of the simulator.
        self.failure: BaseException | None = None
        self.io_calls = 0
        #: Topic that the next or the last I/O call reads, or EFFECT.
        self.touches = ""
        self._clock = clock
        self._body = body
        self._scheduler = getcurrent()
        self._greenlet = greenlet(self._run)

    def _run(self) -> None:
        try:
            if not self.is_dead:
                self._body()
        except Crashed:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self.has_ended = True

    @property
    def is_runnable(self) -> bool:
        if self.has_ended or self.is_paused:
            return False
        if self.waits_until is None or self._clock.now >= self.waits_until:
            return True
        return self._ready is not None and self._ready()

    def run(self, fuel: int) -> None:
        """Let it run until it has made so many I/O calls, waits, or ends. Raises its body's exception."""
        self.fuel = fuel
        self._greenlet.switch()
        if self.failure is not None:
            raise self.failure

    def crash(self) -> None:
        """Kill the process as kill -9 does: none of its further requests reach Kafka."""
        self.is_dead = True
        if not self.has_ended:
            self.run(0)

    def io(self, touches: str = "") -> None:
        """Announce an I/O call that reads this topic, has an EFFECT on Kafka, or neither."""
        if self.is_dead:
            raise Crashed
        self.touches = touches
        self.io_calls += 1
        self._clock.now += self._clock.latency
        if self.fuel <= 0:
            self._hand_back()
        self.fuel -= 1

    def wait(self, milliseconds: int, ready: Callable[[], bool] | None = None) -> None:
        """Let this time pass. It may be less if `ready` becomes true, and more, as on a busy machine."""
        if self.is_dead:
            raise Crashed
        until = self._clock.now + milliseconds
        while self._clock.now < until and not (ready is not None and ready()):
            self.waits_until, self._ready = until, ready
            self._hand_back()
        self.waits_until = self._ready = None

    def _hand_back(self) -> None:
        self._scheduler.switch()
        if self.is_dead:
            raise Crashed
