"""GroupDirectory: an answer counts together with its time."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

from txbridge.broker.groups import GroupDirectory
from txbridge.broker.outside import Outside
from txbridge.core.names import Names

CHECK = Names().check("g")


class Time(Outside):
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class Membership:
    """Hands out futures that the test completes."""

    def __init__(self):
        self.asked = []

    def ask(self, groups):
        answers = {group: Future() for group in groups}
        self.asked.append(answers)
        return answers

    def answer(self, members: int) -> None:
        self.asked[-1][CHECK].set_result(SimpleNamespace(members=[None] * members))


def directory():
    time, membership = Time(), Membership()
    return time, membership, GroupDirectory(membership, Names(), time)


def test_p6_a_new_answer_does_not_make_an_old_one_look_fresh():
    # Found by the simulator: the answer "nobody" had come but was not looked at yet, and its time made the "alive" of
    # long ago believable. One check was burned on a dead group.
    time, membership, groups = directory()
    groups.refresh(["g"])
    membership.answer(1)
    assert groups.is_alive("g")
    time.seconds += 600
    groups.refresh(["g"])
    groups.refresh(["g"])
    membership.answer(0)
    assert not groups.is_alive("g")


def test_p6_an_answer_is_believed_for_two_seconds():
    time, membership, groups = directory()
    groups.refresh(["g"])
    assert not groups.is_alive("g")
    membership.answer(1)
    assert groups.is_alive("g")
    time.seconds += 1.9
    assert groups.is_alive("g")
    time.seconds += 0.2
    assert not groups.is_alive("g")
