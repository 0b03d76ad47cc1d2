"""Calls from our threads to the application's event loop, in batches."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from txbridge.errors import UsageError

_T = TypeVar("_T")


class HandOver:
    """Calls functions on an event loop. Any thread may use `call_on_loop`.

    Waking a loop costs a system call, so only the first waiting call wakes it. Calls that come before the loop runs
    them are done together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False
        #: An empty context. A task that is started on the loop must not inherit the context of the thread that woke it.
        self._context = contextvars.Context()

    def require_this_loop(self) -> None:
        """Raise UsageError in another event loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError("this producer was started in another event loop; create one in each")

    def call_on_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call the function on the loop, soon. It must be quick and must not raise. Calls keep their order."""
        self._calls.append((function, arguments))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._run_calls, context=self._context)
            except RuntimeError:
                # The loop was closed without closing the producer. Nobody waits for these calls.
                self._calls.clear()
                self._is_woken = False

    def resolve_soon(self, future: asyncio.Future[_T], result: _T) -> None:
        """Resolve a future on the loop, soon."""
        self.call_on_loop(_resolve, future, result)

    def _run_calls(self) -> None:
        # First of all, so that a call that is appended from here on wakes the loop again.
        self._is_woken = False
        # Not "while": a fast thread must not keep the loop from its other work.
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)


def _resolve(future: asyncio.Future[_T], result: _T) -> None:
    """Set the result, unless the future was cancelled."""
    if not future.done():
        future.set_result(result)
