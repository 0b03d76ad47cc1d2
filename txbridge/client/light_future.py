"""A Future of which ten thousand may be in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")
_Read = TypeVar("_Read")
#: Its own initial values: what they are is the standard library's business.
_FRESH = {name: value for name, value in Future().__dict__.items() if name not in {"_condition", "_waiters"}}


class LightFuture(Future[_T]):
    """A Future that shares its condition with others.

    A condition of its own is ten objects, and what the garbage collector has to do for them costs more than anything
    else in a transaction. In turn, whoever waits for one future is woken by all of them and looks again.
    """

    def __init__(self, condition: threading.Condition) -> None:
        # Not super().__init__, which makes the condition. Lists are made anew, everything else is a constant.
        self.__dict__.update(_FRESH, _condition=condition, _waiters=[], _done_callbacks=[])

    def result(self, timeout: float | None = None) -> _T:
        """As any Future's."""
        return self._looking_again(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As any Future's."""
        return self._looking_again(super().exception, timeout)

    def _looking_again(self, read: Callable[[float | None], _Read], timeout: float | None) -> _Read:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return read(left)
            except TimeoutError:
                # What is done and has failed with a TimeoutError raises the same again; else it was woken too early.
                if self.done() or (deadline is not None and time.monotonic() >= deadline):
                    return read(0)
