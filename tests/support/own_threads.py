"""Threads of ours that began during the test that asks: another test of the same process may have its own still."""

from __future__ import annotations

import threading

_before: set[threading.Thread] = set()


def remember() -> None:
    """From now on those that run are another test's."""
    _before.clear()
    _before.update(threading.enumerate())


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("txbridge-") and thread not in _before]


def names_of_ours() -> list[str]:
    return [thread.name for thread in threads_of_ours()]
