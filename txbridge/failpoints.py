"""Fault points: named places at which a test can kill this process, as `kill -9` would, with nothing cleaned up.

They stand between the steps of a worker and of a relay. Without TXBRIDGE_FAULT_POINT each is one comparison.
"""

from __future__ import annotations

import os
import signal
import threading

#: "<point>" or "<point>@<n>": die when the point is passed for the n-th time. With "/SIGSTOP" behind it: pause there.
VARIABLE = "TXBRIDGE_FAULT_POINT"

#: Every point, in the order in which a worker's take-over and the commits after it, and a batch of a relay, pass them.
POINTS = (
    "takeover.fenced",
    "takeover.restored",
    "commit.before_begin",
    "commit.begun",
    "commit.real_records",
    "commit.discards",
    "commit.ops",
    "commit.parked",
    "commit.checkpoint",
    "commit.flushed",
    "commit.committed",
    "commit.applied",
    "relay.taken",
    "relay.owned",
    "relay.read",
    "relay.produced",
    "relay.confirming",
    "relay.confirmed",
)

_place, _, _name = os.environ.get(VARIABLE, "").partition("/")
_point, _, _count = _place.partition("@")
_signal = signal.Signals[_name or "SIGKILL"]
_remaining = int(_count) if _count.isdigit() else 1


def fault_point(name: str) -> None:
    """Die here if the test asked for it."""
    global _remaining  # noqa: PLW0603 - a process has one fault
    if name == _point:
        _remaining -= 1
        if _remaining == 0:
            # To this thread: a signal to the process may reach another one first, and this one would go on meanwhile.
            signal.pthread_kill(threading.get_ident(), _signal)
