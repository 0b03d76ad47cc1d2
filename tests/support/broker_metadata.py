"""Metadata of the cluster as one broker knows it.

A Kafka client asks any broker. A broker that is cut off from the others still reports the former state, so here each
broker is asked by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from txbridge.deadline import Deadline
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.node import START_TIMEOUT_S
from txbridge.embedded.ready import MetadataReader, request_metadata

# A follower is in sync again within a second or two of a restart: this adds little.
_IN_SYNC_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """Leader and replicas of a partition, as node ids."""

    #: -1 if there is none.
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.leader >= 0 and set(self.replicas) == set(self.in_sync)


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """One broker's answer."""

    cluster_id: str | None
    #: Ids of the brokers that are alive.
    brokers: frozenset[int]
    #: By "topic/number", Kafka's own topics among them.
    partitions: dict[str, PartitionReplicas]


def parse_metadata(answer: bytes) -> BrokerMetadata:
    """Parse an answer from behind its correlation id."""
    reader = MetadataReader(answer)
    brokers, cluster_id = reader.read_brokers(), reader.read_text()
    reader.read_number(">i")  # the controller, for which KRaft names any broker

    def read_nodes() -> tuple[int, ...]:
        return tuple(reader.read_number(">i") for _ in range(reader.read_number(">i")))

    partitions: dict[str, PartitionReplicas] = {}
    for _ in range(reader.read_number(">i")):
        reader.read_number(">h")  # error
        topic = reader.read_text()
        reader.read_number(">b")  # internal
        for _ in range(reader.read_number(">i")):
            reader.read_number(">h")  # error
            number, leader = reader.read_number(">i"), reader.read_number(">i")
            partitions[f"{topic}/{number}"] = PartitionReplicas(leader, read_nodes(), read_nodes())
    return BrokerMetadata(cluster_id, brokers, partitions)


def ask_metadata(port: int) -> BrokerMetadata | None:
    """The metadata of the broker on this port; None if it does not answer in time."""
    answer = request_metadata(port)
    return None if answer is None else parse_metadata(answer)


def wait_in_sync(kafka: EmbeddedKafka, timeout: float = START_TIMEOUT_S) -> None:
    """Wait until every broker knows a leader of every partition, and all of its replicas as in sync."""
    deadline = Deadline(timeout)
    while missing := _find_out_of_sync(kafka):
        assert not deadline.is_over, f"not all replicas are in sync after {timeout:.0f} s: {', '.join(missing[:10])}"
        time.sleep(_IN_SYNC_POLL_S)


def _find_out_of_sync(kafka: EmbeddedKafka) -> list[str]:
    answers = {node.port: ask_metadata(node.port) for node in kafka.brokers}
    silent = [f"the broker on port {port} does not answer" for port, answer in answers.items() if answer is None]
    views = [answer.partitions for answer in answers.values() if answer is not None]
    return silent + [
        name
        for name in sorted({name for view in views for name in view})
        if not all(name in view and view[name].is_whole for view in views)
    ]
