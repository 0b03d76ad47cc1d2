"""The status page's list of open messages, from queues as owners have them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.support.partition_builder import POLICY, id_of
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_queue import HalfQueue
from txbridge.core.states import TransactionState
from txbridge.operations.causes import NOBODY
from txbridge.worker.http import open_board
from txbridge.worker.http.open_board import OpenBoard, look_at

NOW = 30_000


def entry(offset: int, state: TransactionState = TransactionState.PENDING, error: str | None = None) -> HalfEntry:
    group = "dead" if offset % 2 else "alive"
    return HalfEntry(offset, id_of(offset), group, "orders", 1_000 * offset, 10, 40_000, state, 1, error=error)


def queue_of(*entries: HalfEntry) -> HalfQueue:
    queue = HalfQueue(POLICY)
    for one in entries:
        queue._entries.put_entry(one)
    return queue


HELD = TransactionState.HELD
FIRST = queue_of(
    entry(1),
    entry(2),
    entry(3),
    entry(5, HELD, "no topic orders"),
    entry(6, HELD, "no topic orders"),
    entry(8, HELD, "full"),
)
SECOND = queue_of(entry(4, error="too large"), entry(7, TransactionState.DISCARDED), entry(9))


class Owner:
    """An owner that answers when the test says so."""

    def __init__(self, partition: int, queue: HalfQueue | None) -> None:
        self.partition, self.queue = partition, queue
        self.asked: list[tuple[Any, Future[Any]]] = []

    def ask(self, question: Any) -> Future[Any]:
        self.asked.append((question, Future()))
        return self.asked[-1][1]

    def answer(self) -> None:
        question, answer = self.asked[-1]
        if self.queue is None:
            answer.cancel()
        else:
            answer.set_result(question(self.queue))


class Here:
    """A board with three owners, of which one does not serve its partition."""

    def __init__(self) -> None:
        self.now = 0.0
        self.owners = [Owner(0, FIRST), Owner(1, SECOND), Owner(2, None)]
        worker: Any = type("Worker", (), {"owners": lambda _: self.owners})()
        problem = {"dead": NOBODY, "alive": ""}
        self.board = OpenBoard(lambda: worker, POLICY, problem.get, lambda: self.now)

    def read(self, cause: str = "") -> dict[str, Any]:
        self.now += 10
        self.board.take_snapshot(cause, NOW)
        for owner in self.owners:
            owner.answer()
        found = self.board.take_snapshot(cause, NOW)
        assert not found["reading"]
        return dict(found["read"])


def test_causes_are_counted_with_what_to_do_and_the_oldest_messages_come_first() -> None:
    read = Here().read()
    assert (read["total"], dict(read["states"]), read["unread"]) == (9, {"pending": 5, "held": 3, "discarded": 1}, [2])
    assert {
        one["text"]: (one["count"], one["remedy"].partition(",")[0].partition(";")[0]) for one in read["causes"]
    } == {
        "held for topic orders: no topic orders": (2, "create the topic"),
        "held for topic orders: full": (1, "create the topic"),
        "pending, group dead: no member of the group is connected, to Kafka or a front door": (
            3,
            "start the application",
        ),
        "pending, group alive": (1, ""),
        "pending, group alive: cannot be asked: too large": (1, ""),
        "discarded, group dead": (1, "mend the application"),
    }
    assert [one["of"] for one in read["messages"]] == ["0:1", "0:2", "0:3", "1:4", "0:5", "0:6", "1:7", "0:8", "1:9"]
    assert read["messages"][4] == {
        "of": "0:5",
        "id": id_of(5)[:8],
        "state": "held",
        "group": "dead",
        "topic": "orders",
        "age": 25.0,
        "checks": 1,
        "next": "retry within a minute",
        "trouble": "no topic orders",
    }


def test_owners_are_asked_while_somebody_looks_one_question_at_a_time_and_seldom_if_it_takes_long() -> None:
    here = Here()
    assert here.board.take_snapshot("", NOW) == {"reading": True, "read": None}
    here.board.take_snapshot("", NOW)
    assert [len(owner.asked) for owner in here.owners] == [1, 1, 1]
    for owner in here.owners:
        owner.answer()
    question = here.owners[0].asked[0][1]
    object.__setattr__(question._result, "seconds", 2.0)
    assert not here.board.take_snapshot("", NOW)["reading"]
    for seconds, asked in ((17.0, 1), (1.5, 2)):
        here.now += seconds
        here.board.take_snapshot("", NOW)
        assert len(here.owners[0].asked) == asked


def test_with_very_many_messages_the_oldest_are_shown_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_board, "MOST_SHOWN", 3)
    monkeypatch.setattr(open_board, "_MOST_LOOKED_AT", 5)
    found = look_at(queue_of(*map(entry, range(1, 41)), entry(50, HELD, "full")), "")
    assert (found.counts.total(), [one.offset for one in found.messages]) == (41, [1, 2, 3])
