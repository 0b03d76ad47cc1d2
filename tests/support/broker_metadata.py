"""Metadata of the cluster as one broker knows it.

A broker that is cut off from the others still reports the former state, so each broker is asked by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from txbridge.deadline import Deadline
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.node import START_TIMEOUT_S, ask_broker
from txbridge.embedded.ports import HOST

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

    #: Ids of the brokers that are alive.
    brokers: frozenset[int]
    #: By "topic/number", Kafka's own topics among them.
    partitions: dict[str, PartitionReplicas]


def ask_metadata(port: int) -> BrokerMetadata | None:
    """The metadata of the broker on this port; None if it does not answer in time, or another one did."""
    seen = ask_broker(port)
    if seen is None or not str(seen.orig_broker_name).startswith(f"{HOST}:{port}/"):
        return None
    partitions = {
        f"{topic.topic}/{number}": PartitionReplicas(one.leader, tuple(one.replicas), tuple(one.isrs))
        for topic in seen.topics.values()
        for number, one in topic.partitions.items()
    }
    return BrokerMetadata(frozenset(seen.brokers), partitions)


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
