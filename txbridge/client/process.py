"""Which process this is: after a fork, what belongs to threads of the parent can not be used."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """Another number in a forked child than in its parent; without the system call that os.getpid is."""
    return _generation


def _forked() -> None:
    global _generation  # noqa: PLW0603  a module knows its process
    _generation += 1


os.register_at_fork(after_in_child=_forked)
