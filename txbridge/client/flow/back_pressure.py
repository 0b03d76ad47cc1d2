"""Back-pressure: the pause of a send without room, and turns on an event loop for sends beyond the limit."""

from __future__ import annotations

import asyncio
from collections import deque

from txbridge.client.base.in_flight import InFlight

#: Pause (s) until a send without room looks again: as long as Kafka takes for an answer, which makes room. One send
#: looks at a time, the others wait behind it. A notification would cost every report and every decision something.
PAUSE_S = 0.002


class Turns:
    """Turns of sends, no more than InFlight allows. They belong to one loop."""

    def __init__(self, in_flight: InFlight | None = None) -> None:
        self._in_flight = InFlight() if in_flight is None else in_flight
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Number of waiting sends whose turn has come, and that have not taken it yet.
        self._called = 0
        self._closed = False

    async def take_turn(self, size: int, *, waits: bool) -> int:
        """Take a turn for `size` bytes, and wait for it if `waits`. Returns the epoch for `give_back`."""
        while waits and self._in_flight.is_full and not self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    # Its turn had come, and is another send's now.
                    self._called -= 1
                    self._call_waiting()
                raise
            self._called -= 1
        return self._in_flight.add_attempt(size)

    @property
    def number(self) -> int:
        """Number of turns that are taken."""
        return self._in_flight.number

    def give_back(self, epoch: int, size: int) -> None:
        """Give a turn back, with the epoch from `take_turn` and its size."""
        self._in_flight.remove_attempt(epoch, size)
        self._call_waiting()

    def close(self) -> None:
        """End all waits for a turn. Later sends do not wait."""
        self._closed = True
        self._call_waiting()

    def _call_waiting(self) -> None:
        while self._waiting and (self._closed or self._called < self._in_flight.room):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._called += 1
