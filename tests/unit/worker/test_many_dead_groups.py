"""Groups without a live member: any writer to HALF can invent them, and they must not slow others down."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tests.support.manual_time import ManualTime
from tests.support.partition_builder import Partition, half
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.worker.gates.group_liveness import GroupLiveness

#: Parked at once, as after a restart, so that every check is in the schedules of its group.
POLICY = CheckPolicy(park_after_records=1)
NOW = 1_000_000


class Membership:
    """Answers at once: live groups have a member."""

    def __init__(self, *living: str) -> None:
        self.living = {Names().check(group) for group in living}
        self.asked: list[str] = []

    def ask(self, groups):
        answers = {group: Future() for group in groups}
        self.asked += answers
        for group, answer in answers.items():
            answer.set_result(SimpleNamespace(members=[None] * (group in self.living)))
        return answers

    def abandon_unanswered(self) -> None:
        pass


class World:
    """A partition with one message of each of so many groups, all due, and one more of a live group."""

    def __init__(self, dead: int) -> None:
        self.time, self.membership = ManualTime(), Membership("alive")
        self.partition = Partition(POLICY)
        self.queue = self.partition.queue
        self.groups = GroupLiveness(self.membership, Names(), self.time)
        for number in range(dead):
            self.queue.read_half(half(number, group=f"dead-{number}"))
        self.queue.read_half(half(dead, group="alive"))
        self.partition.step(NOW, checks=0)

    def round(self) -> list[str]:
        """Run a due turn of the commit loop and return the checked groups."""
        due = self.queue.timers
        assert self.queue.next_due(NOW) <= NOW
        attended = self.groups.attend_groups(
            lambda limit: due.groups_with_checks_due(NOW, limit), lambda group: due.has_checks_due(group, NOW)
        )
        due_round = self.partition.due_round(NOW, 1_000, groups=[*filter(self.groups.is_alive, attended)])
        planner = self.partition.planner
        draft = planner.plan(planner.choose([], 0, NOW), NOW, due_round, may_discard=False, most_malformed=0)
        checked = [entry.group for entry in draft.checks]
        draft.abandon()
        self.time.seconds += 0.25
        return checked


def calls(action) -> int:
    """The number of function calls: a measure of work that other load of the machine does not change."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def settled(dead: int) -> World:
    """A world after the queue of groups has been passed a few times."""
    world = World(dead)
    for _ in range(3 * dead // 20 + 10):
        world.round()
    return world


def test_p8_to_know_when_something_is_due_costs_the_same_with_many_dead_groups():
    few, many = settled(200), settled(4_000)
    assert calls(lambda: many.queue.next_due(NOW)) <= calls(lambda: few.queue.next_due(NOW)) + 5


def test_p8_a_round_costs_the_same_with_many_dead_groups():
    few, many = settled(300), settled(3_000)
    some = sum(calls(few.round) for _ in range(20))
    assert sum(calls(many.round) for _ in range(20)) < 1.1 * some


def test_p8_a_group_that_is_alive_is_checked_in_every_round_beside_thousands_of_dead_ones():
    world = settled(2_000)
    world.round()
    # Its answer counts for two seconds, and it is asked about again every second.
    assert [world.round() for _ in range(40)] == [["alive"]] * 40
    asked = world.membership.asked[-500:]
    assert asked.count(Names().check("alive")) >= 2


@pytest.mark.parametrize("dead", [30, 1_000, 2_500])
def test_p8_a_dead_group_that_comes_alive_is_noticed_in_a_bounded_number_of_rounds(dead):
    world = settled(dead)
    name = f"dead-{dead // 2}"
    world.membership.living.add(Names().check(name))
    # 50 of them are asked about in a round, at most once a second each; the answer counts in the round after.
    rounds = dead // 49 + 6
    assert any(name in world.round() for _ in range(rounds))


def test_p8_new_groups_do_not_keep_those_waiting_that_came_before():
    world = World(1_000)
    world.round()
    for number in range(20_000, 30_000):
        world.queue.read_half(half(number, group=f"new-{number}"))
    world.membership.living.add(Names().check("dead-900"))
    # Half of each round is for groups that were seen before.
    assert any("dead-900" in world.round() for _ in range(1_000 // 10 + 6))


def test_p9_what_is_kept_of_groups_is_bounded():
    world = settled(3_000)
    assert len(world.groups._groups) <= 1_000
