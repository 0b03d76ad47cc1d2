"""Readiness of brokers, tested by a real request instead of a fixed pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from txbridge.deadline import Deadline
from txbridge.embedded import metadata

# The port opens 0.05 s before the first answer; asking more often than this would not make a start shorter.
_POLL_S = 0.02


def answering_cluster(port: int, timeout: float = metadata.REQUEST_TIMEOUT_S) -> str | None:
    """The id of the cluster whose broker answers a metadata request on the port; None if none does in `timeout` s."""
    answer = metadata.ask(port, timeout)
    return answer.cluster_id if answer is not None and answer.brokers else None


def wait_until_ready(
    port: int, cluster_id: str, has_ended: Callable[[], bool], timeout: float, brokers: Collection[int] = ()
) -> bool:
    """Wait until *this* cluster answers, and knows these brokers as alive.

    False when `timeout` seconds have passed or the broker has ended.
    """
    deadline = Deadline(timeout)
    while not deadline.is_over and not has_ended():
        answer = metadata.ask(port)
        if answer is not None and answer.brokers and answer.cluster_id == cluster_id and answer.brokers >= set(brokers):
            return True
        time.sleep(_POLL_S)
    return False


def out_of_sync(ports: Collection[int]) -> list[str]:
    """Brokers that do not answer, and partitions that lack a leader or in-sync replicas in the answer of a broker."""
    answers = {port: metadata.ask(port) for port in ports}
    missing = [f"the broker on port {port} does not answer" for port, answer in answers.items() if answer is None]
    known = [answer.partitions for answer in answers.values() if answer is not None]
    names = sorted({name for partitions in known for name in partitions})
    return missing + [
        name for name in names if not all(name in partitions and partitions[name].is_whole for partitions in known)
    ]
