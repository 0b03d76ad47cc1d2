"""The proven end of a log: a majority of its replicas names the leader, and that leader names its end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pytest

from txbridge.kafka.proven_end import LATEST, View, can_be_proven, proven_end


class Brokers:
    """The answer of each broker. A broker without one does not respond."""

    def __init__(self, leaders: dict[int, int], ends: dict[int, int], alive: Collection[int] = (1, 2, 3)) -> None:
        self._leaders, self._ends, self._alive = leaders, ends, frozenset(alive)
        self.replicas = dict.fromkeys(leaders, frozenset({1, 2, 3}))

    def views_of(self, topic: str, partition: int) -> Iterator[tuple[int, View]]:
        assert (topic, partition) == ("HALF", 7)
        for node in self._alive & self._leaders.keys():
            yield node, View(self._leaders[node], self.replicas[node], self._alive)

    def offsets_of(self, node: int, topic: str, partitions: Iterable[int], at: int) -> Mapping[int, int] | None:
        assert (topic, list(partitions), at) == ("HALF", [7], LATEST)
        return {7: self._ends[node]} if node in self._ends else {}

    def close(self) -> None:
        """Nothing is open."""


ALL = frozenset({1, 2, 3})


@pytest.mark.parametrize(
    ("leaders", "ends", "alive", "end"),
    [
        ({1: 2, 2: 2, 3: 2}, {2: 40}, ALL, 40),
        ({2: 2, 3: 2}, {2: 40}, {2, 3}, 40),
        ({2: 2, 3: 2}, {2: 40}, ALL, 40),
        # A leader that is cut off is outvoted.
        ({1: 1, 2: 2, 3: 2}, {1: 5, 2: 40}, ALL, 40),
        ({1: 3, 2: 2, 3: 3}, {2: 5, 3: 40}, ALL, 40),
        ({1: 1, 2: 1, 3: 3}, {3: 5, 1: 40}, ALL, 40),
        # Its word, and that of no other broker, proves nothing.
        ({1: 1}, {1: 5}, ALL, None),
        ({1: 1, 2: 2}, {1: 5, 2: 40}, ALL, None),
        ({1: -1, 2: -1, 3: -1}, {-1: 5}, ALL, None),
        # The leader says that it leads no more.
        ({1: 2, 2: 2, 3: 2}, {}, ALL, None),
        ({}, {}, ALL, None),
        ({}, {}, {}, None),
    ],
)
def test_a_majority_of_the_replicas_proves_the_end(
    leaders: dict[int, int], ends: dict[int, int], alive: Collection[int], end: int | None
) -> None:
    assert proven_end(Brokers(leaders, ends, alive), "HALF", 7) == end


@pytest.mark.parametrize(
    ("replicas", "alive", "end", "can_be"),
    [
        # These differ, so they are no majority.
        ({1: {1, 2, 3}, 2: {2, 3, 4}, 3: {2, 3, 5}}, {1, 2, 3}, None, True),
        ({1: {1}, 2: {1}}, {1, 2}, 40, True),
        ({1: {1, 2}}, {1}, None, False),
        # The second one has it no more: it has no vote.
        ({1: {1, 2}, 2: {1}}, {1, 2}, None, True),
        # Alive and silent: it may still prove it.
        ({1: {1, 2, 3}}, {1, 2, 3}, None, True),
        ({}, {1, 2, 3}, None, True),
    ],
)
def test_a_majority_of_other_replicas_than_three(
    replicas: dict[int, set[int]], alive: set[int], end: int | None, can_be: bool
) -> None:
    brokers = Brokers(dict.fromkeys(replicas, 1), {1: 40}, alive)
    brokers.replicas = {node: frozenset(known) for node, known in replicas.items()}
    assert proven_end(brokers, "HALF", 7) == end
    assert can_be_proven(brokers, "HALF", 7) is can_be
