"""Threads of txbridge that began during the current test. An earlier test of the process may have left some."""

from __future__ import annotations

import threading

_before: set[threading.Thread] = set()


def remember() -> None:
    """Count all threads that run now as those of another test."""
    _before.clear()
    _before.update(threading.enumerate())


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("txbridge-") and thread not in _before]


def names_of_ours() -> list[str]:
    return [thread.name for thread in threads_of_ours()]
