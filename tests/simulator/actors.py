"""Actors: code with an ordinary flow of control in a greenlet of its own, of which only one ever runs.

An actor hands control back to the scheduler when its fuel (a number of I/O calls) is used up, or when it waits. So the
same choices of the scheduler give the same run, and owners interleave at every I/O call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from greenlet import getcurrent, greenlet

#: Of an I/O call: it changes something in Kafka.
EFFECT = "effect"


class Crashed(BaseException):
    """The process is gone, in the middle of whatever it did."""


class Clock(Protocol):
    """The world's time, and what passes with each I/O call (ms)."""

    now: int
    latency: int


class Actor:
    """One process. `body` runs in its greenlet until it returns or is crashed."""

    def __init__(self, name: str, clock: Clock, body: Callable[[], None]) -> None:
        self.name = name
        self.is_dead = False
        self.has_ended = False
        self.is_paused = False
        self.fuel = 0
        #: What it waits for, if it waits (ms of the world, and what ends the wait early).
        self.waits_until: int | None = None
        self._ready: Callable[[], bool] | None = None
        #: What its body raised: a defect of the simulator.
        self.failure: BaseException | None = None
        self.io_calls = 0
        #: What the I/O call touches that comes next, or was made last.
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

    # --- for the scheduler ------------------------------------------------------------------------------------------

    @property
    def is_runnable(self) -> bool:
        if self.has_ended or self.is_paused:
            return False
        if self.waits_until is None or self._clock.now >= self.waits_until:
            return True
        return self._ready is not None and self._ready()

    def run(self, fuel: int) -> None:
        """Give it control until it has made so many I/O calls, waits, or ends. Raises what its body raised."""
        self.fuel = fuel
        self._greenlet.switch()
        if self.failure is not None:
            raise self.failure

    def crash(self) -> None:
        """Kill -9: nothing of it reaches Kafka any more."""
        self.is_dead = True
        if not self.has_ended:
            self.run(0)

    # --- for the actor itself ---------------------------------------------------------------------------------------

    def io(self, touches: str = "") -> None:
        """An I/O call is about to happen; it reads this topic, has an EFFECT on Kafka, or neither."""
        if self.is_dead:
            raise Crashed
        self.touches = touches
        self.io_calls += 1
        self._clock.now += self._clock.latency
        if self.fuel <= 0:
            self._hand_back()
        self.fuel -= 1

    def wait(self, milliseconds: int, ready: Callable[[], bool] | None = None) -> None:
        """Let this time pass, or less when `ready` comes true; perhaps more, as on a busy machine."""
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
