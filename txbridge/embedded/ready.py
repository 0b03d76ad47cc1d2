"""Whether a broker answers: a real request, not a pause."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.embedded.ports import HOST

# The port opens 0.05 s before the first answer; asking more often than this would not make a start shorter.
_POLL_S = 0.02
# One connect or request on the loopback takes milliseconds; a broker that is busy starting may take longer.
_REQUEST_TIMEOUT_S = 2.0


def answering_cluster(port: int, timeout: float = _REQUEST_TIMEOUT_S) -> str | None:
    """The id of the cluster whose broker answers a metadata request on the port; None if none does in `timeout` s."""
    try:
        socket.create_connection((HOST, port), timeout).close()
    except OSError:
        return None  # librdkafka would log each failed connection
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
    try:
        metadata = client.list_topics(timeout=timeout)
    except KafkaException:
        return None
    return str(metadata.cluster_id) if metadata.brokers else None


def wait_until_ready(port: int, cluster_id: str, has_ended: Callable[[], bool], timeout: float) -> bool:
    """Wait until *this* cluster answers. False when `timeout` seconds have passed or the broker has ended."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not has_ended():
        if answering_cluster(port) == cluster_id:
            return True
        time.sleep(_POLL_S)
    return False
