"""Histories for the status page: one is looked up at a time, however many ask, and kept for a moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.testing.workers import eventually
from txbridge.web.exchange import PageAnswer, PageRequest
from txbridge.worker.http.history_desk import HistoryDesk


class Looking:
    """A look-up that takes as long as the test wants."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.go_on = threading.Event()
        self.failure: Exception | None = None

    def __call__(self, target: str) -> dict[str, Any]:
        self.targets.append(target)
        assert self.go_on.wait(30)
        if self.failure is not None:
            raise self.failure
        return {"of": target}


@pytest.fixture
def looking() -> Iterator[Looking]:
    made = Looking()
    yield made
    made.go_on.set()


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=100.0)


@pytest.fixture
def desk(looking: Looking, clock: SimpleNamespace) -> HistoryDesk:
    return HistoryDesk(looking, lambda: clock.now)


def ask(desk: HistoryDesk, target: str) -> PageAnswer | Future[PageAnswer]:
    return desk.read_page(PageRequest("/transaction.json", {"of": target}))


def status(answer: PageAnswer | Future[PageAnswer]) -> tuple[int, Any]:
    found = answer if isinstance(answer, PageAnswer) else answer.result(30)
    return found.status.value, json.loads(found.body)


def test_many_ask_for_one_and_it_is_looked_up_once(desk: HistoryDesk, looking: Looking, clock: SimpleNamespace) -> None:
    answers = [ask(desk, "0:1") for _ in range(20)]
    looking.go_on.set()
    assert [status(answer) for answer in answers] == [(200, {"of": "0:1"})] * 20
    clock.now += 0.9
    assert status(ask(desk, "0:1")) == (200, {"of": "0:1"})
    assert looking.targets == ["0:1"]
    clock.now += 0.2
    assert status(ask(desk, "0:1")) == (200, {"of": "0:1"})
    assert looking.targets == ["0:1", "0:1"]


def test_another_one_waits_for_its_turn(desk: HistoryDesk, looking: Looking) -> None:
    first = ask(desk, "0:1")
    busy = (503, {"error": "another transaction is being looked up: try again in a moment"})
    assert [status(ask(desk, f"0:{number}")) for number in range(2, 8)] == [busy] * 6
    looking.go_on.set()
    assert status(first)[0] == 200
    assert status(ask(desk, "0:2")) == (200, {"of": "0:2"})
    assert looking.targets == ["0:1", "0:2"]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (UsageError("there is none"), (404, {"error": "there is none"})),
        (EnvironmentProblemError("Kafka is away"), (502, {"error": "Kafka is away"})),
    ],
)
def test_an_error_is_an_answer(desk: HistoryDesk, looking: Looking, failure: Exception, expected: object) -> None:
    looking.failure = failure
    looking.go_on.set()
    assert status(ask(desk, "0:1")) == expected


def test_after_a_defect_the_next_one_is_looked_up(desk: HistoryDesk, looking: Looking) -> None:
    looking.failure = RuntimeError("a defect")
    looking.go_on.set()
    answer = ask(desk, "0:1")
    assert isinstance(answer, Future)
    with pytest.raises(RuntimeError):
        answer.result(30)
    looking.failure = None
    eventually(lambda: status(ask(desk, "0:2")) == (200, {"of": "0:2"}))
