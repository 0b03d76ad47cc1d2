"""From our threads to the application's event loop, in batches."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from txbridge.errors import UsageError

_T = TypeVar("_T")


class HandOver:
    """Calls functions on an event loop; `call` may be used by any thread.

    Waking a loop costs a system call, so it is woken only when nothing waits for it yet: what comes until it gets round
    to it is done in the same turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False
        #: Of no caller: a task that is started on the loop must not inherit that of whoever woke it.
        self._context = contextvars.Context()

    def require_this_loop(self) -> None:
        """UsageError in another event loop than ours."""
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError("this producer was started in another event loop; create one in each")

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call it on the loop, soon; it must be quick and must not raise. Calls keep their order."""
        self._calls.append((function, arguments))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._run, context=self._context)
            except RuntimeError:
                # The loop was closed, and the producer was not: nobody is left to be told.
                self._calls.clear()
                self._is_woken = False

    def _run(self) -> None:
        # First: what is appended from here on wakes the loop again.
        self._is_woken = False
        # Not "while": a fast thread must not keep the loop from its other work.
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)


class Resolving:
    """Resolves a future on its loop when it is called, in any thread; one object for each that is in flight."""

    __slots__ = ("_future", "_hand_over")

    def __init__(self, hand_over: HandOver, future: asyncio.Future[Any]) -> None:
        self._hand_over = hand_over
        self._future = future

    def __call__(self, result: object) -> None:
        self._hand_over.call(resolve, self._future, result)


def resolve(future: asyncio.Future[_T], result: _T) -> None:
    """Set the result, unless whoever waited has been cancelled."""
    if not future.done():
        future.set_result(result)
