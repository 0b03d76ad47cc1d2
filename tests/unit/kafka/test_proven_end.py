"""The proven end of a log: a majority of its replicas names the leader, and that leader names its end."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from txbridge.kafka.proven_end import View, can_be_proven, proven_end


class Brokers:
    """The answer of each broker. A broker without one does not respond."""

    def __init__(self, leaders: dict[int, int], ends: dict[int, int], alive: Collection[int] = (1, 2, 3)) -> None:
        self._leaders, self._ends, self._alive = leaders, ends, alive
        self.replicas = dict.fromkeys(leaders, frozenset({1, 2, 3}))

    def list_nodes(self) -> Collection[int]:
        return self._alive

    def view_of(self, node: int, topic: str, partition: int) -> View | None:
        assert (topic, partition) == ("HALF", 7)
        return View(self._leaders[node], self.replicas[node]) if node in self._leaders else None

    def end_of(self, node: int, topic: str, partition: int) -> int | None:
        assert (topic, partition) == ("HALF", 7)
        return self._ends.get(node)


def end_of(brokers: Brokers) -> int | None:
    return proven_end(brokers, "HALF", 7)


def test_all_agree() -> None:
    assert end_of(Brokers({1: 2, 2: 2, 3: 2}, {2: 40})) == 40


def test_one_that_is_gone_is_not_missed() -> None:
    assert end_of(Brokers({2: 2, 3: 2}, {2: 40}, alive=(2, 3))) == 40
    assert end_of(Brokers({2: 2, 3: 2}, {2: 40})) == 40


@pytest.mark.parametrize("cut_off", [1, 2, 3])
def test_a_leader_that_is_cut_off_is_outvoted(cut_off: int) -> None:
    new = cut_off % 3 + 1
    leaders = dict.fromkeys((1, 2, 3), new) | {cut_off: cut_off}
    assert end_of(Brokers(leaders, {cut_off: 5, new: 40})) == 40


def test_its_word_and_that_of_nobody_else_proves_nothing() -> None:
    assert end_of(Brokers({1: 1}, {1: 5})) is None


def test_one_for_each_proves_nothing() -> None:
    assert end_of(Brokers({1: 1, 2: 2}, {1: 5, 2: 40})) is None


def test_nobody_leads() -> None:
    assert end_of(Brokers({1: -1, 2: -1, 3: -1}, {1: 5})) is None


def test_the_leader_says_that_it_leads_no_more() -> None:
    assert end_of(Brokers({1: 2, 2: 2, 3: 2}, {})) is None


def test_replicas_that_differ_are_no_majority() -> None:
    brokers = Brokers({1: 2, 2: 2, 3: 2}, {2: 40})
    brokers.replicas[2], brokers.replicas[3] = frozenset({2, 3, 4}), frozenset({2, 3, 5})
    assert end_of(brokers) is None


def test_nobody_answers() -> None:
    assert end_of(Brokers({}, {})) is None
    assert end_of(Brokers({}, {}, alive=())) is None


def test_a_single_replica_is_its_own_majority() -> None:
    brokers = Brokers({1: 1, 2: 1}, {1: 40}, alive=(1, 2))
    brokers.replicas = dict.fromkeys((1, 2), frozenset({1}))
    assert end_of(brokers) == 40


def test_with_one_of_two_replicas_nothing_can_be_proven() -> None:
    brokers = Brokers({1: 1}, {1: 5}, alive=(1,))
    brokers.replicas[1] = frozenset({1, 2})
    assert end_of(brokers) is None
    assert not can_be_proven(brokers, "HALF", 7)


def test_a_replica_that_is_alive_and_silent_may_still_prove_it() -> None:
    assert can_be_proven(Brokers({1: 1}, {1: 5}), "HALF", 7)
    assert can_be_proven(Brokers({}, {}), "HALF", 7)
