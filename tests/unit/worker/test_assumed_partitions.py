"""Partitions that a worker serves before its group has made an assignment."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.client_fakes import LAYOUT
from txbridge.core.names import Names
from txbridge.worker import partitions
from txbridge.worker.http.health import Health
from txbridge.worker.observe.metrics import PartitionFacts
from txbridge.worker.partitions import Worker


class Owner:
    """An owner that does nothing."""

    def __init__(self, _context: object, partition: int, _confirm: object) -> None:
        self.partition = partition
        self.stopped = False

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def join(self, _timeout: float) -> None:
        pass

    def partition_facts(self) -> PartitionFacts:
        return PartitionFacts(self.partition, serving=True)


GONE, ME, OTHER = KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND)), "client", "another"


class Group:
    """A worker, and what its group's coordinator answers, one after the other: members, or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str] | Exception) -> None:
        monkeypatch.setattr(partitions, "PartitionOwner", Owner)
        self.answers = list(answers)
        #: Called while the worker waits for another answer.
        self.meanwhile: Callable[[], object] = lambda: None
        context: Any = SimpleNamespace(
            membership=SimpleNamespace(ask=lambda groups: dict.fromkeys(groups, self)),
            names=Names(),
            metrics=SimpleNamespace(partitions_found=2),
            cluster=None,
            brokers=SimpleNamespace(close=lambda: None),
            outside=SimpleNamespace(wait=lambda *_: self.meanwhile()),
        )
        self.worker = Worker(context, "workers", ME, LAYOUT)

    def result(self, _timeout: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(members=[SimpleNamespace(client_id=name) for name in answer])

    def owned(self) -> list[int]:
        return [owner.partition for owner in self.worker.owners()]


def test_without_another_member_all_are_served_and_keep_their_owners_once_they_are_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Group(monkeypatch, [])
    alone.worker.assume_partitions()
    before: list[Any] = list(alone.worker.owners())
    assert alone.owned() == [0, 1]
    # The group has not named it: /readyz says so.
    assert not alone.worker.was_assigned
    alone.worker.assign_partitions([1, 2])
    assert alone.owned() == [1, 2]
    assert alone.worker.owners()[0] is before[1]
    assert [owner.stopped for owner in before] == [True, False]


@pytest.mark.parametrize(
    "answers",
    [
        # A new installation has no such group.
        [GONE],
        # Faust has joined it meanwhile.
        [[ME]],
        # The member that was killed leaves with the end of its session.
        [[OTHER], [ME, OTHER], [ME]],
        [TimeoutError(), KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), []],
    ],
)
def test_as_soon_as_the_group_certainly_has_no_other_member(
    monkeypatch: pytest.MonkeyPatch, answers: list[list[str] | Exception]
) -> None:
    group = Group(monkeypatch, *answers)
    group.worker.assume_partitions()
    assert (group.owned(), group.answers) == ([0, 1], [])


def test_not_after_an_assignment_or_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, [OTHER], [OTHER], [])
    group.meanwhile = lambda: group.worker.assign_partitions([1])
    group.worker.assume_partitions()
    assert group.owned() == [1]
    group.worker.stop()
    group.worker.assume_partitions()
    group.worker.assume_partitions()
    assert list(group.worker._owners) == [1]


def test_metrics_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    health, group = Health(10_000, 20.0, 6_000), Group(monkeypatch, [])
    health.look_after(group.worker)
    assert health.partition_facts() is None
    group.worker.assume_partitions()
    assert health.partition_facts() == [PartitionFacts(0, serving=True), PartitionFacts(1, serving=True)]
    group.worker.assign_partitions([])
    assert health.partition_facts() == []
