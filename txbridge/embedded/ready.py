"""Readiness of brokers, tested by a real request instead of a fixed pause.

The request is written by hand: a Kafka client asks any broker of the cluster, and confluent-kafka loses the Ctrl-C that
comes while a broker starts.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Collection

from txbridge.deadline import Deadline
from txbridge.embedded.ports import HOST

# Metadata, in the oldest version that names the cluster; every Kafka from 0.10.1 to 4.3 answers it.
_METADATA, _VERSION = 3, 2
# One connect or request on the loopback takes milliseconds; a broker that is busy starting may take longer.
_REQUEST_TIMEOUT_S = 2.0
# The port opens 0.05 s before the first answer; asking more often than this would not make a start shorter.
_POLL_S = 0.02


class MetadataReader:
    """Reads the fields of an answer one after the other, from behind its correlation id."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self._at = answer, 0

    def read_number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._answer, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def read_text(self) -> str | None:
        length = self.read_number(">h")
        if length < 0:
            return None
        self._at += length
        return self._answer[self._at - length : self._at].decode()

    def read_brokers(self) -> frozenset[int]:
        """The ids of the brokers that are alive; the first field."""
        nodes = []
        for _ in range(self.read_number(">i")):
            nodes.append(self.read_number(">i"))
            self.read_text()  # host
            self.read_number(">i")  # port
            self.read_text()  # rack
        return frozenset(nodes)


def request_metadata(port: int) -> bytes | None:
    """The answer of the broker on this port of the loopback address; None if there is none in time."""
    header = struct.pack(">hhi", _METADATA, _VERSION, 1) + struct.pack(">h", -1)
    request = header + struct.pack(">i", -1)  # of all topics
    try:
        with socket.create_connection((HOST, port), _REQUEST_TIMEOUT_S) as broker, broker.makefile("rb") as answers:
            broker.sendall(struct.pack(">i", len(request)) + request)
            head = answers.read(4)
            if len(head) < 4:
                return None
            (length,) = struct.unpack(">i", head)
            answer = answers.read(length)
    except OSError:
        return None
    return answer[4:] if len(answer) == length else None


def ask_cluster_id(port: int, brokers: Collection[int] = ()) -> str | None:
    """The id of the cluster of the broker on this port; None if it does not answer, or does not know these as alive."""
    answer = request_metadata(port)
    if answer is None:
        return None
    reader = MetadataReader(answer)
    alive = reader.read_brokers()
    return reader.read_text() if alive and alive >= set(brokers) else None


def wait_until_ready(
    port: int, cluster_id: str, has_ended: Callable[[], bool], timeout: float, brokers: Collection[int] = ()
) -> bool:
    """Wait until *this* cluster answers, and knows these brokers as alive.

    False when `timeout` seconds have passed or the broker has ended.
    """
    deadline = Deadline(timeout)
    while not deadline.is_over and not has_ended():
        if ask_cluster_id(port, brokers) == cluster_id:
            return True
        time.sleep(_POLL_S)
    return False
