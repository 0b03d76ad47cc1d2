"""Repeated take-overs of an owner's partition: pauses grow until the partition was served for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from txbridge.core.names import Names
from txbridge.core.open_messages import OpenCounts
from txbridge.kafka.environment import Outside
from txbridge.kafka.errors import FencedError
from txbridge.worker import partitions
from txbridge.worker.partition_context import PartitionSlots
from txbridge.worker.partitions import PartitionOwner


class Time(Outside):
    """Time that passes in waits and as the test says, and the waits."""

    def __init__(self, waits: int) -> None:
        self.seconds = 1_000.0
        self.waits: list[float] = []
        self._most = waits

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, event: threading.Event, seconds: float) -> None:
        self.seconds += seconds
        self.waits.append(seconds)
        if len(self.waits) == self._most:
            event.set()


class Attempts:
    """Take-overs of partition 0: how long each takes, how long it serves, and the error that ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int) -> None:
        self.time = Time(waits)
        self.confirm: Callable[[int], bool] = lambda _: True
        #: Seconds of a take-over, and of the service after it; None if the take-over fails.
        self.plan: list[tuple[float, float | None]] = []
        self.error: Exception = TimeoutError("no answer")
        metrics: Any = SimpleNamespace(count_failure=lambda _event: None, taken_over=lambda _seconds: None)
        self.context: Any = SimpleNamespace(
            outside=self.time,
            names=Names(),
            metrics=metrics,
            next_event=print,
            no_longer_held=SimpleNamespace(service=nullcontext, log_due=lambda _now: None),
            slots=PartitionSlots(),
        )
        monkeypatch.setattr(partitions, "take_over", self._take_over)
        monkeypatch.setattr(partitions, "CommitLoop", lambda *_: self)
        decision_log = SimpleNamespace(take_in_events=lambda _idle: None)
        monkeypatch.setattr(partitions, "DecisionLog", lambda *_: decision_log)

    def pauses(self) -> list[float]:
        """Run the owner, and return its pauses between attempts."""
        PartitionOwner(self.context, 0, self.confirm).run()
        return self.time.waits

    def _take_over(self, *_: object) -> Any:
        seconds, self.serves = self.plan.pop(0)
        self.time.seconds += seconds
        if self.serves is None:
            raise self.error
        queue = SimpleNamespace(open_counts=lambda: OpenCounts({}, {}), watermark=0, next_end=0)
        return SimpleNamespace(queue=queue, close=lambda: None)

    pause, rest, idle = 0.0, 0.0, 0.1

    def prove_ownership(self) -> None:
        pass

    def run(self) -> None:
        assert self.serves is not None
        self.time.seconds += self.serves
        raise self.error


def test_p8_attempts_that_each_time_out_after_half_a_minute_are_made_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
):
    attempts = Attempts(monkeypatch, waits=7)
    attempts.plan = [(31.0, None)] * 7
    assert attempts.pauses() == [0.5, 1, 2, 4, 8, 10, 10]


def test_p8_a_partition_that_was_served_for_half_a_minute_is_taken_over_again_soon(monkeypatch: pytest.MonkeyPatch):
    attempts = Attempts(monkeypatch, waits=6)
    attempts.plan = [(1.0, None), (1.0, None), (1.0, 29.0), (1.0, 31.0), (1.0, None), (1.0, None)]
    assert attempts.pauses() == [0.5, 1, 2, 0.5, 1, 2]


def test_p8_two_apps_that_fence_each_other_leave_each_other_more_and_more_time(monkeypatch: pytest.MonkeyPatch):
    """Although the group lets each of them wait for a minute before it has the partition again."""
    attempts = Attempts(monkeypatch, waits=4)
    attempts.error = FencedError("fenced")
    attempts.plan = [(1.0, 5.0)] * 4

    def confirm(_partition: int) -> bool:
        attempts.time.seconds += 60
        return True

    attempts.confirm = confirm
    assert attempts.pauses() == [0.5, 1, 2, 4]


def test_p8_a_partition_without_room_is_taken_over_soon_after_another_has_left(monkeypatch: pytest.MonkeyPatch):
    attempts = Attempts(monkeypatch, waits=3)
    attempts.context.slots = PartitionSlots(0, "too few file descriptors")
    assert attempts.pauses() == [0.5, 1, 2]
