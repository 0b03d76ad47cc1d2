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
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol


class View(NamedTuple):
    """The answer of one broker about a partition, in node ids."""

    #: -1 if there is no leader.
    leader: int
    replicas: frozenset[int]


class EachBroker(Protocol):
    """Brokers that are asked one by one. None means that a broker does not answer in time, or does not know."""

    def list_nodes(self) -> Collection[int]:
        """The brokers that are alive according to one of them."""

    def view_of(self, node: int, topic: str, partition: int) -> View | None:
        """The answer of this broker about a partition."""

    def end_of(self, node: int, topic: str, partition: int) -> int | None:
        """The log end of this broker, if it takes itself for the leader (read uncommitted)."""


#: Opens connections of its own to each broker, for as long as the context lasts.
AskEachBroker = Callable[[], AbstractContextManager[EachBroker]]


def proven_end(brokers: EachBroker, topic: str, partition: int) -> int | None:
    """The end of the log, as of some moment after the call began; None when it cannot be proven now."""
    nodes = brokers.list_nodes()
    first = next((view for node in sorted(nodes) if (view := brokers.view_of(node, topic, partition))), None)
    if first is None:
        return None
    votes: Counter[View] = Counter()
    # A dead broker would keep the others waiting: only those that are alive are asked.
    for node in sorted(first.replicas.intersection(nodes)):
        view = brokers.view_of(node, topic, partition)
        if view is None or view.leader < 0 or node not in view.replicas:
            continue
        votes[view] += 1
        if 2 * votes[view] > len(view.replicas):
            return brokers.end_of(view.leader, topic, partition)
    return None


def can_be_proven(brokers: EachBroker, topic: str, partition: int) -> bool:
    """Whether enough replicas are alive to prove an end, sooner or later; also true when no broker answers now."""
    nodes = frozenset(brokers.list_nodes())
    views = (brokers.view_of(node, topic, partition) for node in sorted(nodes))
    view = next((view for view in views if view), None)
    return view is None or 2 * len(view.replicas & nodes) > len(view.replicas)
