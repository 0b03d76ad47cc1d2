"""Metadata of the cluster as one broker knows it, read over a connection of its own.

A Kafka client asks any broker. A broker that is cut off from the others still reports the former state, so here each
broker is asked by itself.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from txbridge.embedded.ports import HOST

_T = TypeVar("_T")

# Metadata, in the oldest version that names the cluster; every Kafka from 0.10.1 to 4.3 answers it.
_METADATA, _VERSION = 3, 2
# One connect or request on the loopback takes milliseconds; a broker that is busy starting may take longer.
REQUEST_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Partition:
    """Leader and replicas of a partition, as node ids."""

    #: -1 if there is none.
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.leader >= 0 and set(self.replicas) == set(self.in_sync)


@dataclass(frozen=True, slots=True)
class Metadata:
    """One broker's answer."""

    cluster_id: str | None
    #: Ids of the brokers that are alive.
    brokers: frozenset[int]
    #: By "topic/number", Kafka's own topics among them.
    partitions: dict[str, Partition]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str | None:
        length = self.number(">h")
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def array(self, one: Callable[[], _T]) -> list[_T]:
        return [one() for _ in range(self.number(">i"))]

    def nodes(self) -> tuple[int, ...]:
        return tuple(self.array(lambda: self.number(">i")))


def parse(answer: bytes) -> Metadata:
    """Parse an answer from behind its correlation id."""
    read = _Reader(answer)

    def broker() -> int:
        node = read.number(">i")
        read.text()  # host
        read.number(">i")  # port
        read.text()  # rack
        return node

    brokers = frozenset(read.array(broker))
    cluster_id = read.text()
    read.number(">i")  # the controller, for which KRaft names any broker
    partitions: dict[str, Partition] = {}

    def topic() -> None:
        read.number(">h")  # error
        name = read.text()
        read.number(">b")  # internal

        def partition() -> None:
            read.number(">h")  # error
            number = read.number(">i")
            leader = read.number(">i")
            partitions[f"{name}/{number}"] = Partition(leader, read.nodes(), read.nodes())

        read.array(partition)

    read.array(topic)
    return Metadata(cluster_id, brokers, partitions)


def ask(port: int, timeout: float = REQUEST_TIMEOUT_S) -> Metadata | None:
    """The metadata of the broker on this port of the loopback address; None if it does not answer in `timeout` s."""
    header = struct.pack(">hhi", _METADATA, _VERSION, 1) + struct.pack(">h", -1)
    request = header + struct.pack(">i", -1)  # of all topics
    try:
        with socket.create_connection((HOST, port), timeout) as connection, connection.makefile("rb") as answers:
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = answers.read(4)
            if len(head) < 4:
                return None
            (length,) = struct.unpack(">i", head)
            answer = answers.read(length)
    except OSError:
        return None
    return parse(answer[4:]) if len(answer) == length else None
