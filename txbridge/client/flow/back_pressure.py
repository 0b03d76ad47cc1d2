"""Back-pressure on an event loop: who would be too many waits for a turn."""

from __future__ import annotations

import asyncio
from collections import deque

from txbridge.client.flow.in_flight import InFlight


class Turns:
    """Lets in no more than InFlight allows; belongs to one loop."""

    def __init__(self, in_flight: InFlight | None = None) -> None:
        self._in_flight = InFlight() if in_flight is None else in_flight
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Whose turn has come, but who have not taken it yet.
        self._called = 0
        self._closed = False

    async def take(self, size: int, *, waits: bool) -> int:
        """Take a turn for `size` bytes, after waiting for it if that is asked for; returns what to give back."""
        while waits and self._in_flight.is_full and not self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    # Its turn had come: another's now.
                    self._called -= 1
                    self._call()
                raise
            self._called -= 1
        return self._in_flight.add(size)

    @property
    def number(self) -> int:
        """How many have a turn now."""
        return self._in_flight.number

    def give_back(self, epoch: int, size: int) -> None:
        """What `take` has returned, and its size."""
        self._in_flight.remove(epoch, size)
        self._call()

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        self._call()

    def _call(self) -> None:
        while self._waiting and (self._closed or self._called < self._in_flight.room):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._called += 1
