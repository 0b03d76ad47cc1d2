"""The status page's list of open messages: one thread reads it only while the page is viewed, and not too often."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.support.open_messages import PENDING
from tests.support.partition_builder import id_of
from txbridge.errors import EnvironmentProblemError
from txbridge.operations.overview import Cause, OpenOverview
from txbridge.testing.workers import eventually
from txbridge.worker.http.open_board import OpenBoard
from txbridge.worker.http.topic_reader import _overview

MESSAGE = replace(PENDING, partition=0, born=10_000, checks=2, next_due=31_000, key=b"secret")


def cause_with(text, *messages):
    cause = Cause(text, messages[0].state)
    for message in messages:
        cause.add_message(message, 100)
    return cause


OVERVIEW = _overview(
    OpenOverview(
        30_000, 4, [cause_with("many", *[replace(MESSAGE, half_offset=n) for n in (6, 5)]), cause_with("one", MESSAGE)]
    )
)


class Reading:
    """A reading that takes as long as the test wants, at the test's time."""

    def __init__(self):
        self.now = 0.0
        self.begun = 0
        self.answer = OVERVIEW
        self.go_on = threading.Event()

    def __call__(self, progress):
        self.begun += 1
        progress(1, 4)
        assert self.go_on.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def reading():
    made = Reading()
    yield made
    made.go_on.set()


@pytest.fixture
def board(reading):
    return OpenBoard(reading, lambda: reading.now)


def read(board, cause=""):
    eventually(lambda: not board.take_snapshot(cause)["reading"])
    return board.take_snapshot(cause)


def test_nobody_looks_and_nothing_is_read_and_many_look_and_it_is_read_once(board, reading):
    assert reading.begun == 0
    found = [board.take_snapshot("") for _ in range(20)]
    assert {one["reading"] for one in found} == {True}
    assert found[-1]["read"] is None
    eventually(lambda: reading.begun == 1)
    eventually(lambda: board.take_snapshot("")["done"] == 1)
    assert board.take_snapshot("")["of"] == 4
    reading.go_on.set()
    shown = read(board)["read"]
    assert reading.begun == 1
    assert (shown["total"], shown["partitions"], shown["states"]) == (3, 4, {"pending": 3})
    assert [one["of"] for one in shown["messages"]] == ["0:4", "0:5", "0:6"]
    first = shown["messages"][0]
    assert first == {
        "of": "0:4",
        "id": id_of(4)[:8],
        "state": "pending",
        "group": "orders",
        "topic": "orders.placed",
        "age": 20.0,
        "checks": 2,
        "next": "check in 1s",
        "trouble": "",
    }


def test_reading_is_a_tenth_of_the_time_at_most(board, reading):
    board.take_snapshot("")
    eventually(lambda: reading.begun == 1)
    reading.now = 5.0
    reading.go_on.set()
    read(board)
    # It took 5 s: 45 s of rest.
    reading.now = 49.0
    assert not board.take_snapshot("")["reading"]
    reading.now = 50.0
    board.take_snapshot("")
    eventually(lambda: reading.begun == 2)


def test_one_cause_is_chosen_by_its_name_and_one_that_is_gone_is_all(board, reading):
    reading.go_on.set()
    shown = read(board)["read"]
    name = next(one["name"] for one in shown["causes"] if one["text"] == "many")
    chosen = board.take_snapshot(name)["read"]
    assert (chosen["cause"], [one["of"] for one in chosen["messages"]]) == (name, ["0:5", "0:6"])
    gone = board.take_snapshot("0" * 16)["read"]
    assert (gone["cause"], len(gone["messages"])) == ("", 3)


def test_what_was_read_before_is_shown_with_the_error_of_now(board, reading):
    reading.go_on.set()
    read(board)
    reading.now, reading.answer = 100.0, EnvironmentProblemError("Kafka cannot be reached")
    board.take_snapshot("")
    eventually(lambda: reading.begun == 2)
    found = read(board)
    assert found["error"] == "Kafka cannot be reached"
    assert found["read"]["total"] == 3
