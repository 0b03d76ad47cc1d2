"""The status page's forecast and history, without Kafka."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.core.open_messages import OpenCounts
from txbridge.worker.http.health import Health
from txbridge.worker.http.monitor import StatusBoard, _are_known, _partition, _schedule
from txbridge.worker.observe.metrics import PartitionFacts, WorkerMetrics

#: A moment at the beginning of a slot of births.
NOW = 1_700_000_000.0


def facts(**births: int) -> PartitionFacts:
    """Messages of one group, as many as said, born so many seconds ago: s20=3."""
    slots = {int(NOW - int(name[1:])) // 10: number for name, number in births.items()}
    return PartitionFacts(0, serving=True, open=OpenCounts({"orders": slots}, {}), end_lag=0)


def test_checks_that_are_due_soon_follow_from_the_ages() -> None:
    policy = CheckPolicy(
        transaction_timeout=60_000,
        transaction_check_interval=300_000,
        transaction_check_max=2,
        transaction_max_age=10**9,
    )
    # First checks after 60 s and 360 s. The check of those of 50 s is due in 10 s, of 30 s in 30 s, of 100 s (asked at
    # 60 s) in 260 s; those of 400 s have had both.
    found = _schedule(policy, [facts(s50=1, s30=2, s100=4, s400=8)], int(NOW * 1000))
    assert found["within"] == {"10": 1, "60": 3, "600": 7}
    assert found["after_last"] == 8
    assert (found["first"], found["every"], found["most"], found["greatest_age"]) == (60, 300, 2, 1_000_000)


class Knowing(Health):
    """An owner's knowledge of these partitions, without a worker."""

    def __init__(self, *known: PartitionFacts) -> None:
        super().__init__(10_000, 20.0, 6_000)
        self.known = list(known)

    def partition_facts(self) -> list[PartitionFacts] | None:
        return self.known


def snapshot(ahead: float | None) -> dict[str, Any]:
    """The snapshot of two messages of 50 and 20 s, on a machine whose clock is so far ahead of the brokers'."""
    one = replace(facts(s50=1, s20=1), clock_ahead=ahead)
    settings = WorkerSettings(bootstrap_servers="127.0.0.1:1")
    return StatusBoard(settings, WorkerMetrics(), Knowing(one), clock=lambda: NOW + (ahead or 0)).take_snapshot()


@pytest.mark.parametrize("ahead", [None, 30.0, -30.0, 73 * 3600.0])
def test_ages_are_by_the_brokers_time_as_those_of_the_metrics_are(ahead: float | None) -> None:
    found = snapshot(ahead)
    assert found["groups"][0]["oldest"] == 40  # a slot is as old as its end
    # First checks after 6 s, further ones every 30 s: 50 s are asked at 66 s, 20 s at 36 s.
    assert found["schedule"]["within"] == {"10": 0, "60": 2, "600": 2}
    assert found["schedule"]["after_last"] == 0


def test_what_is_due_goes_by_the_earlier_clock_when_they_differ_by_more_than_a_minute() -> None:
    # The brokers' clock says 50 s and 20 s; this machine's, an hour behind, that they are not born yet.
    found = snapshot(-3600.0)
    assert found["groups"][0]["oldest"] == 40
    assert found["schedule"]["within"] == {"10": 0, "60": 0, "600": 0}


def test_a_partition_that_is_not_restored_has_unknown_counts_and_no_zeros() -> None:
    unknown = _partition(PartitionFacts(3, serving=False), "kafka_unavailable")
    assert (unknown["pending"], unknown["held"], unknown["discarded"]) == (None, None, None)
    known = _partition(facts(s50=2), None)
    assert (known["pending"], known["held"], known["discarded"]) == (2, 0, 0)
    assert not _are_known(None)
    assert not _are_known([facts(s50=2), PartitionFacts(3, serving=False)])
    assert _are_known([facts(s50=2)])
    assert _are_known([])


def test_rates_are_differences_over_the_time_that_has_passed() -> None:
    clock = [NOW]
    metrics = WorkerMetrics()
    settings = WorkerSettings(bootstrap_servers="127.0.0.1:1")
    board = StatusBoard(settings, metrics, Health(10_000, 20.0, 6_000), clock=lambda: clock[0])
    board.sample()
    metrics.count_failure("fenced")
    metrics.count_failure("refused")
    clock[0] += 4
    board.sample()
    clock[0] += 5
    board.sample()
    rates = board.take_snapshot()["rates"]
    assert rates["series"]["errors"] == [0.5, 0.0]
    assert rates["series"]["delivered"] == [0.0, 0.0]
    # No partition was assigned yet: the number of pending messages is unknown.
    assert rates["pending"] == [None, None, None]
    # Before Kafka was reached there is nothing to show but the reason.
    now = board.take_snapshot()
    assert now["complete"] is False
    assert now["partitions"] == {"total": 0, "here": [], "elsewhere": []}
    assert now["ready"][0].startswith("starting: ")


class FakeWorker:
    """A worker that was assigned its partitions, with one producer group; the test answers who is alive in it."""

    was_assigned, stopped, names = True, False, Names()
    internal_topics = SimpleNamespace(problem=None)

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Future[Any]] = {}
        self.error: Exception | None = None

    def partition_facts(self) -> list[PartitionFacts]:
        if self.error is not None:
            raise self.error
        return [facts(s50=1)]

    def status(self) -> list[Any]:
        return []

    def visible_groups(self) -> list[str]:
        return ["orders"]

    def ask_groups(self, groups: list[str]) -> dict[str, Future[Any]]:
        self.asked += groups
        answers: dict[str, Future[Any]] = {group: Future() for group in groups}
        self.answers |= answers
        return answers


def board_of(health: Health) -> StatusBoard:
    return StatusBoard(WorkerSettings(bootstrap_servers="127.0.0.1:1"), WorkerMetrics(), health, clock=lambda: NOW)


def alive(board: StatusBoard) -> Any:
    [group] = board.take_snapshot()["groups"]
    return group["alive"]


def test_p8_a_worker_that_is_started_again_asks_again_what_nobody_has_answered_to_the_one_before() -> None:
    health, before, after = Health(10_000, 20.0, 6_000), FakeWorker(), FakeWorker()
    board, check = board_of(health), Names().check("orders")
    health.look_after(before)  # type: ignore[arg-type]
    for _ in range(3):
        board.sample()
    assert before.asked.count(check) == 1
    # Faust has crashed. The requests of the first worker are never answered.
    health.look_after(after)  # type: ignore[arg-type]
    board.sample()
    assert after.asked.count(check) == 1
    after.answers[check].set_result(SimpleNamespace(members=[None, None]))
    board.sample()
    assert alive(board) == 2


def test_p8_an_unexpected_error_is_logged_once_and_does_not_end_the_sampling() -> None:
    health, worker = Health(10_000, 20.0, 6_000), FakeWorker()
    board = board_of(health)
    health.look_after(worker)  # type: ignore[arg-type]
    worker.error = RuntimeError("dictionary changed size during iteration")
    with capture_logs() as logs:
        for _ in range(3):
            board.sample()
    assert [(line["event"], str(line["exc_info"])) for line in logs] == [
        ("unexpected_error", "dictionary changed size during iteration")
    ]
    worker.error = None
    board.sample()
    assert board.take_snapshot()["rates"]["pending"] == [1]
