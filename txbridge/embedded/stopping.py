"""Common stop of several nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from txbridge.deadline import Deadline

# A broker that ends hands its leaderships over when the controllers order it. Once most controllers have ended, no
# order comes, and the broker would wait for five minutes. Nothing is lost when it is killed instead.
_WITHOUT_QUORUM_S = 2.0
_POLL_S = 0.05


class Process(Protocol):
    """A node that may run."""

    def is_running(self) -> bool: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def stop_together(nodes: Sequence[Process], timeout: float) -> None:
    """Send SIGTERM to all, and SIGKILL after `timeout` seconds. Return when they have ended."""
    running = [node for node in nodes if node.is_running()]
    try:
        for node in running:
            node.terminate()
        deadline = Deadline(timeout)
        most_ended = False
        while (alive := sum(node.is_running() for node in running)) and not deadline.is_over:
            if 2 * alive < len(running) and not most_ended:
                most_ended = True
                deadline = Deadline(min(deadline.left, _WITHOUT_QUORUM_S))
            time.sleep(_POLL_S)
    finally:
        for node in running:
            node.kill()
