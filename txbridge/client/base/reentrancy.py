"""Re-entrancy guard: finds a close() or flush() inside of a call that it would have to wait for."""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass


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
