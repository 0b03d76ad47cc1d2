"""Which process this is: after a fork, what belongs to threads of the parent cannot be used."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref

_generation = 0
#: Objects that hold a handle of librdkafka.
_owners: weakref.WeakSet[object] = weakref.WeakSet()
#: Locks of modules. A thread of the parent may have held one at the fork, and in the child nobody would let it go.
_locks: list[threading.Lock] = []


def generation() -> int:
    """Another number in a forked child than in its parent; without the system call that os.getpid is."""
    return _generation


def owns_handle(owner: object) -> None:
    """In a forked child this object, and so its handle, is never collected.

    librdkafka's destructor waits for threads that only the parent has, and the child would end with a signal.
    """
    _owners.add(owner)


def lock() -> threading.Lock:
    """A lock for a module: free in a forked child."""
    made = threading.Lock()
    _locks.append(made)
    return made


def _forked() -> None:
    global _generation  # noqa: PLW0603  a module knows its process
    _generation += 1
    for held in _locks:
        held._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  as the standard library does with its own
    for owner in list(_owners):
        # A reference that nothing gives back: a list of ours would be emptied when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(after_in_child=_forked)
