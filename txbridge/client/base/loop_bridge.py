"""Results from our threads for the application's event loop, in batches."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from typing import Any, TypeVar

from txbridge.errors import UsageError

_T = TypeVar("_T")


class HandOver:
    """Resolves futures of an event loop. Any thread may use `resolve_soon`.

    Waking a loop costs a system call, so only the first waiting result wakes it. Those that come before the loop runs
    are handed over together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._results: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._is_woken = False
        #: An empty context. A task that is started on the loop must not inherit the context of the thread that woke it.
        self._context = contextvars.Context()

    def require_this_loop(self) -> None:
        """Raise UsageError in another event loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError("this producer was started in another event loop; create one in each")

    def resolve_soon(self, future: asyncio.Future[_T], result: _T) -> None:
        """Resolve a future on the loop, soon, unless it was cancelled. Results keep their order."""
        self._results.append((future, result))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._resolve_all, context=self._context)
            except RuntimeError:
                # The loop was closed without closing the producer. Nobody waits for these results.
                self._results.clear()
                self._is_woken = False

    def _resolve_all(self) -> None:
        # First of all, so that a result that is appended from here on wakes the loop again.
        self._is_woken = False
        # Not "while": a fast thread must not keep the loop from its other work.
        for _ in range(len(self._results)):
            future, result = self._results.popleft()
            if not future.done():
                future.set_result(result)
