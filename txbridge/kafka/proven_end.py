"""The proven end of a log: every record that was acknowledged before the request lies below it.

A client asks the broker that it takes for the leader. A broker that was cut off from the others, or stood still, does
not know that it is no longer the leader, and answers with an old end. So each replica is asked separately who leads,
and only the answer of a majority is believed. Then that leader is asked for its log end.

That is enough as long as no leader is elected uncleanly. A record that was acknowledged with acks=all is in every
replica that was in sync. With min.insync.replicas 2 of 3 these are two at least, which had learned of their leader
before they fetched the record from it. Any two of the three that are asked later include one of them. If it names the
leader that took the record, that leader has the record. If it names a later leader, that one was in sync when it was
elected, so it has the record, too. It has also learned of its predecessor by then, so it cannot answer as the leader
that it once was. In general a majority is enough where min.insync.replicas is at least half of the replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

#: ListOffsets: the timestamps that ask for the log end and the log start.
LATEST, EARLIEST = -1, -2


class View(NamedTuple):
    """The answer of one broker about a partition, in node ids."""

    #: -1 if there is no leader.
    leader: int
    replicas: frozenset[int]
    #: The brokers that it takes for alive.
    alive: frozenset[int]


class EachBroker(Protocol):
    """Brokers that are asked at the same time, each alone. One that does not answer in time is left out."""

    def views_of(self, topic: str, partition: int) -> Iterator[tuple[int, View]]:
        """Answers of the brokers that hold the partition, as they come, each with its node id."""

    def offsets_of(self, node: int, topic: str, partitions: Iterable[int], at: int) -> Mapping[int, int] | None:
        """Log ends or starts (read uncommitted) of the partitions of which this broker takes itself for the leader."""

    def close(self) -> None:
        """Close the connections."""


def proven_end(brokers: EachBroker, topic: str, partition: int) -> int | None:
    """The end of the log, as of some moment after the call began; None when it cannot be proven now."""
    votes: Counter[tuple[int, frozenset[int]]] = Counter()
    for node, view in brokers.views_of(topic, partition):
        if view.leader < 0 or node not in view.replicas:
            continue
        vote = (view.leader, view.replicas)
        votes[vote] += 1
        if 2 * votes[vote] > len(view.replicas):
            return (brokers.offsets_of(view.leader, topic, [partition], LATEST) or {}).get(partition)
    return None


def can_be_proven(brokers: EachBroker, topic: str, partition: int) -> bool:
    """Whether enough replicas are alive to prove an end, sooner or later; also true when no broker answers now."""
    _, view = next(brokers.views_of(topic, partition), (-1, None))
    return view is None or 2 * len(view.replicas & view.alive) > len(view.replicas)
