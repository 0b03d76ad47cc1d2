"""Futures of which ten thousand may be in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from txbridge.client.base import process
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

_FINISHED = "FINISHED"

_T = TypeVar("_T")
_Read = TypeVar("_Read")


class SharedCondition(threading.Condition):
    """Condition of futures that callers seldom wait for. Without a waiter, a notification costs nothing."""

    # `with` looks for these on the class, and finds the lock's own methods in the instance. A Condition's methods are
    # functions that call the lock's, twice for each of the five times that a transaction needs it.
    __slots__ = ("__enter__", "__exit__", "process")

    def __init__(self) -> None:
        super().__init__()
        self.process = process.generation()
        self.__enter__ = self._lock.__enter__  # type: ignore[attr-defined, method-assign]  # the standard library's own
        self.__exit__ = self._lock.__exit__  # type: ignore[attr-defined, method-assign]

    def notify_all(self) -> None:
        """Notify all waiters. The lock must be held."""
        if self._waiters:  # type: ignore[attr-defined]  # the standard library's own
            super().notify_all()


class LightFuture(Future[_T]):
    """A Future that shares its condition with others.

    A condition of its own is ten objects. The garbage collector's work for them costs more than anything else in a
    transaction. In return, every resolved future wakes all waiters, and each of them looks again.
    """

    def __init__(self, condition: SharedCondition) -> None:
        # Not super().__init__, which makes a condition. The other attributes that it sets are constants of the class.
        self._condition: SharedCondition = condition
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> _T:
        """Return the result, as any Future does."""
        return self._looking_again(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, as any Future does."""
        return self._looking_again(super().exception, timeout)

    def _looking_again(self, read: Callable[[float | None], _Read], timeout: float | None) -> _Read:
        deadline = Deadline(timeout)
        if self._condition.process != process.generation() and self._state != _FINISHED:
            raise UsageError("this future belongs to a producer that was started before a fork: only the parent knows")
        while True:
            try:
                return read(deadline.timeout)
            except TimeoutError:
                # A future that failed with a TimeoutError raises it again. Otherwise the waiter was woken too early.
                if self.done() or deadline.is_over:
                    return read(0)


# Initial values of a Future's other attributes, taken from the standard library.
for _name, _value in Future().__dict__.items():
    if _name not in {"_condition", "_waiters", "_done_callbacks"}:
        setattr(LightFuture, _name, _value)
