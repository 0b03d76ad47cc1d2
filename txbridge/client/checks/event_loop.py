"""Calls of the application's check method on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from txbridge.client.async_listener import ListenerMethod
from txbridge.client.base.loop_bridge import HandOver
from txbridge.client.base.reentrancy import calling
from txbridge.client.checks.request import CheckRequest
from txbridge.client.listener import UNKNOWN, ListenerOutcome
from txbridge.deadline import Deadline

#: Interval (s) at which close() looks whether the loop is closed. A closed loop does not report the end of a check.
_LOOK_S = 0.1

_Asked = tuple[CheckRequest, Callable[[ListenerOutcome | None], None]]


class AsyncChecks:
    """Calls `check_local_transaction` on an event loop, as CheckPool does in threads."""

    def __init__(self, method: ListenerMethod, owner: object, concurrency: int) -> None:
        self._method = method
        self._owner = owner
        self._concurrency = concurrency
        self._condition = threading.Condition()
        self._asked = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # The rest is used only on the loop.
        self._waiting: deque[_Asked] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def ask_application(
        self, hand_over: HandOver, request: CheckRequest, answer: Callable[[ListenerOutcome | None], None]
    ) -> None:
        """Ask the application and pass its answer on. The thread of the checks calls this.

        After close nothing is answered, so that the request stays in Kafka for another member of the group.
        """
        with self._condition:
            if self._closed:
                return
            self._asked += 1
        self._loop = hand_over.loop
        hand_over.call_on_loop(self._take_check, (request, answer))

    def close(self, timeout: float | None = None) -> None:
        """Start no more checks, and wait up to `timeout` seconds (None: no limit) for the others. Not for the loop."""
        deadline = Deadline(timeout)
        with self._condition:
            self._closed = True
            while self._asked and not (self._loop is not None and self._loop.is_closed()):
                if deadline.is_over:
                    return
                self._condition.wait(min(_LOOK_S, deadline.left))

    def _take_check(self, asked: _Asked) -> None:
        self._waiting.append(asked)
        self._start_checks()

    def _start_checks(self) -> None:
        while self._waiting and len(self._tasks) < self._concurrency:
            task = asyncio.get_running_loop().create_task(self._run_check(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._end_check)

    def _end_check(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with self._condition:
            self._asked -= 1
            self._condition.notify_all()
        self._start_checks()

    async def _run_check(self, request: CheckRequest, answer: Callable[[ListenerOutcome | None], None]) -> None:
        if self._closed:
            return
        try:
            with calling(self._owner):
                outcome = await self._method.call_listener(request.message, left_running=lambda _: None)
        except BaseException:
            # The application ends its loop. Unknown makes the worker ask again.
            answer(UNKNOWN)
            raise
        answer(outcome)
