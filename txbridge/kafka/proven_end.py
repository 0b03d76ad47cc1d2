"""Where a log ends, proven: whatever was acknowledged before the question was put lies below it.

A client asks the broker that it takes for the leader. One that was cut off from the other brokers, or stood still, does
not know that it leads no more, and answers with the end of long ago. So each replica is asked by itself who leads, and
only what a majority of them says is believed; then that leader is asked where its log ends.

Why that is enough, as long as no leader is elected uncleanly: a record that was acknowledged with acks=all is in every
replica that was in sync. With min.insync.replicas 2 of 3 those are two, which had learned of their leader before they
fetched the record from it. Any two of three that are asked later include one of them. If it names the leader that took
the record, that one has it. If it names a later one, that one was in sync when it was elected, so it has it, too, and
has itself learned of its predecessor by then: it cannot answer as the leader that it once was. In general a majority
is enough where min.insync.replicas is at least half of the replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol


class View(NamedTuple):
    """What one broker says about a partition: node ids."""

    #: -1 if nobody leads it.
    leader: int
    replicas: frozenset[int]


class EachBroker(Protocol):
    """Brokers that are asked one by one. None stands for whoever does not answer in time, or does not know."""

    def nodes(self) -> Collection[int]:
        """The brokers that one of them takes to be alive."""

    def view(self, node: int, topic: str, partition: int) -> View | None:
        """What this broker says about a partition."""

    def end(self, node: int, topic: str, partition: int) -> int | None:
        """Where the log of this broker ends, if it takes itself for the leader (read uncommitted)."""


#: Opens connections of its own to each broker, for as long as the context lasts.
AskEachBroker = Callable[[], AbstractContextManager[EachBroker]]


def proven_end(brokers: EachBroker, topic: str, partition: int) -> int | None:
    """The end of the log, as of some moment after the call began; None when nothing is proven now."""
    nodes = brokers.nodes()
    first = next((view for node in sorted(nodes) if (view := brokers.view(node, topic, partition))), None)
    if first is None:
        return None
    votes: Counter[View] = Counter()
    # Those that are gone would keep the others waiting: whoever is not taken to be alive is not asked.
    for node in sorted(first.replicas.intersection(nodes)):
        view = brokers.view(node, topic, partition)
        if view is None or view.leader < 0 or node not in view.replicas:
            continue
        votes[view] += 1
        if 2 * votes[view] > len(view.replicas):
            return brokers.end(view.leader, topic, partition)
    return None


def can_be_proven(brokers: EachBroker, topic: str, partition: int) -> bool:
    """Whether enough replicas are alive to prove an end, sooner or later; also when nobody says anything now."""
    nodes = frozenset(brokers.nodes())
    views = (brokers.view(node, topic, partition) for node in sorted(nodes))
    view = next((view for view in views if view), None)
    return view is None or 2 * len(view.replicas & nodes) > len(view.replicas)
