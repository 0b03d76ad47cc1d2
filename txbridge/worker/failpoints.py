"""Fault points: named places at which a test can kill this worker, as `kill -9` would, with nothing cleaned up.

They stand between the numbered steps of take-over and commit. Without TXBRIDGE_FAULT_POINT each is one comparison.
"""

from __future__ import annotations

import os
import signal

#: "<point>" or "<point>@<n>": die when the point is passed for the n-th time.
VARIABLE = "TXBRIDGE_FAULT_POINT"

#: Every point, in the order in which a take-over and the commits after it pass them.
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
)

_point, _, _count = os.environ.get(VARIABLE, "").partition("@")
_remaining = int(_count) if _count.isdigit() else 1


def fault_point(name: str) -> None:
    """Die here if the test asked for it."""
    global _remaining  # noqa: PLW0603 - a process has one fault
    if name == _point:
        _remaining -= 1
        if _remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
