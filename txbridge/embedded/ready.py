"""Readiness of brokers, tested by a real request instead of a fixed pause."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from txbridge.deadline import Deadline
from txbridge.embedded.ports import HOST
from txbridge.interrupts import in_own_thread

# One connect or request on the loopback takes milliseconds; a broker that is busy starting may take longer.
_REQUEST_TIMEOUT_S = 2.0
# The port opens 0.05 s before the first answer; asking more often than this would not make a start shorter.
_POLL_S = 0.02


def ask_broker(port: int) -> ClusterMetadata | None:
    """The cluster as known behind this port of the loopback address; None if its broker does not answer in time.

    Once that has named other brokers, one of these may give the rest of the answer.
    """
    try:
        # The client would wait for the whole time-out while nothing listens.
        socket.create_connection((HOST, port), _REQUEST_TIMEOUT_S).close()
        # A client of its own for each question knows no other broker at first.
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
        # confluent-kafka loses a Ctrl-C that comes within a request.
        return in_own_thread(partial(admin.list_topics, timeout=_REQUEST_TIMEOUT_S))
    except (OSError, KafkaException):
        return None


def is_ready(port: int, cluster_id: str, brokers: Collection[int] = ()) -> bool:
    """Whether the broker on this port answers for *this* cluster, and these are alive; at least one is."""
    seen = ask_broker(port)
    return seen is not None and seen.cluster_id == cluster_id and bool(seen.brokers) and {*brokers} <= {*seen.brokers}


def wait_until_ready(
    port: int, cluster_id: str, has_ended: Callable[[], bool], timeout: float, brokers: Collection[int]
) -> bool:
    """Wait until `is_ready`. False when `timeout` seconds have passed or the broker has ended."""
    deadline = Deadline(timeout)
    while not deadline.is_over and not has_ended():
        if is_ready(port, cluster_id, brokers):
            return True
        time.sleep(_POLL_S)
    return False
