"""Code of the application's in threads and callbacks of ours: what it raises is logged, and ends no thread.

A guard finds a close() or flush() inside of a call that it would have to wait for.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from txbridge.client.base.log import report

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def may_be_a_signal(error: BaseException) -> bool:
    """Whether a signal's handler may have raised it. Python runs these in the main thread alone."""
    return not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()


def contained(
    step: Callable[_Given, _Answer], event: str = "kafka_callback_raised", level: int = logging.ERROR
) -> Callable[_Given, _Answer | None]:
    """The step, which logs what it raises and returns None then, also for `sys.exit()`."""

    @wraps(step)
    def run(*given: _Given.args, **named: _Given.kwargs) -> _Answer | None:
        try:
            return step(*given, **named)
        except BaseException as error:
            if may_be_a_signal(error):
                raise
            report(level, event, exception=error)
            return None

    return run


class ContainedFuture(Future[_Answer]):
    """A Future whose callbacks are contained. In a plain one, a callback that raises SystemExit ends all others."""

    def add_done_callback(self, fn: Callable[[Future[_Answer]], Any]) -> None:
        """Call `fn` when it is done, as any Future does."""
        super().add_done_callback(contained(fn, "callback_raised"))


@dataclass(slots=True, eq=False)
class _Call:
    owner: weakref.ref[object]
    running: threading.Lock
    outer: _Call | None


def calling(owner: object) -> threading.Lock:
    """Return a lock for the `with` block in which the application is called on behalf of `owner`.

    The guard follows the call into coroutines, into the tasks they start and into threads that inherit its context
    (asyncio.to_thread does). A flag of the thread would be lost there.

    It is a lock, because only the `with` of a lock cannot be interrupted by a signal between its parts. A call that is
    over must not count as running. So the context is not restored either: a call counts while its lock is held.
    """
    # Drop calls that are over. A task may outlive the call that started it and start others, so the chain would grow.
    outer = _current.get()
    while outer is not None and not outer.running.locked():
        outer = outer.outer
    running = threading.Lock()
    _current.set(_Call(weakref.ref(owner), running, outer))
    return running


def is_called_by(owner: object) -> bool:
    """Whether this code runs in a call on behalf of `owner`, at any depth."""
    call = _current.get()
    while call is not None:
        if call.running.locked() and call.owner() is owner:
            return True
        call = call.outer
    return False


_current: ContextVar[_Call | None] = ContextVar("txbridge_calling", default=None)
