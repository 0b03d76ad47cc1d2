"""Threads and identity of this process. After a fork, the child cannot use objects of threads of the parent."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TypeVar

_T = TypeVar("_T")

_generation = 0
#: Objects that hold a handle of librdkafka.
_owners: weakref.WeakSet[object] = weakref.WeakSet()
#: Locks of modules. A thread of the parent may have held one at the fork, and in the child nobody would release it.
_locks: list[threading.Lock] = []


def generation() -> int:
    """Return a number that differs between a parent and its forked child. It needs no system call, unlike os.getpid."""
    return _generation


def owns_handle(owner: _T) -> _T:
    """Keep this object, and so its handle, from being collected in a forked child. Returns it.

    librdkafka's destructor waits for threads that only the parent has, and the child would end with a signal. That
    holds for an admin client of one call, too: it may wait for Python's garbage collector at the fork.
    """
    _owners.add(owner)
    return owner


def lock() -> threading.Lock:
    """Return a lock for a module, which is free in a forked child."""
    made = threading.Lock()
    _locks.append(made)
    return made


def _forked() -> None:
    global _generation  # noqa: PLW0603  a module knows its process
    _generation += 1
    for held in _locks:
        held._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  as the standard library does with its own
    for owner in list(_owners):
        # A reference that is never released. A list of ours would be emptied when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(after_in_child=_forked)


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Wait up to `timeout` seconds (None: no limit) for the end of a thread, if it was started at all."""
    if thread.ident is not None:
        thread.join(timeout)
