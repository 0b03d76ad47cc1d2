"""The choice of the writer for a half message. Messages in company go to one that lingers a moment for others."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.harness import eventually
from txbridge.client.prepare.half_writer_pool import Company, HalfWriters


class Writer:
    def __init__(self, linger, thread):
        self.linger, self.thread = linger, thread
        self.log = []
        self.on_their_way = 0

    def start(self):
        self.log.append("start")

    def close(self):
        self.log.append("close")


@pytest.fixture
def made():
    return []


@pytest.fixture
def writers(made):
    def new(linger, thread):
        made.append(Writer(linger, thread))
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    return writers


def test_a_lone_caller_waits_for_nobody_and_needs_one_connection(writers, made):
    assert writers.of(Company.NOBODY).linger == 0
    assert [(writer.thread, writer.log) for writer in made] == [("half", ["start"])]


def test_where_five_would_be_on_their_way_another_one_is_made_and_four_at_most(writers, made):
    writers.of(Company.NOBODY).on_their_way = 4
    for number in (2, 3, 4):
        eventually(lambda number=number: writers.of(Company.NOBODY).thread == f"half-{number}", 120)
        writers.of(Company.NOBODY).on_their_way = 4
    for _ in range(3):
        writers.of(Company.NOBODY).on_their_way += 1
    assert [(writer.linger, writer.on_their_way) for writer in made] == [(0, 5), (0, 5), (0, 5), (0, 4)]
    # The first one with room is chosen: few callers use few connections.
    made[1].on_their_way = 3
    assert writers.of(Company.NOBODY) is made[1]
    writers.close()
    assert [writer.log for writer in made] == [["start", "close"]] * 4


def test_company_gets_writers_of_its_own_when_there_is_some(writers, made):
    assert [writers.of(company).linger for company in (Company.CALLERS, Company.MANY, Company.CALLERS)] == [0.5, 5, 0.5]
    assert [(writer.thread, writer.log) for writer in made[1:]] == [
        ("half-callers", ["start"]),
        ("half-many", ["start"]),
    ]


def test_threads_that_need_it_at_once_make_one(writers, made):
    threads = [threading.Thread(target=writers.of, args=[Company.MANY]) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2


def test_who_does_not_wait_gets_another_one_until_it_is_connected(made):
    connected = threading.Event()

    class Slow(Writer):
        def start(self):
            assert connected.wait(120)
            super().start()

    def new(linger, thread):
        made.append((Slow if linger else Writer)(linger, thread))
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    started = time.monotonic()
    while len(made) < 2:
        assert writers.of(Company.CALLERS, waits=False) is made[0]
    for _ in range(3):
        assert writers.of(Company.CALLERS, waits=False) is made[0]
    assert time.monotonic() - started < 60
    threading.Timer(0.05, connected.set).start()
    # Waiting callers get the writer that is being made, and no second one is made.
    assert writers.of(Company.CALLERS).linger == 0.5
    assert writers.of(Company.CALLERS, waits=False).linger == 0.5
    writers.close()
    assert [(writer.linger, writer.log) for writer in made] == [(0, ["start", "close"]), (0.5, ["start", "close"])]
    assert not [thread for thread in threading.enumerate() if thread.name == "txbridge-half-new"]
    assert writers.of(Company.MANY, waits=False) is made[0]


def test_close_ends_all_and_no_other_is_made_that_nobody_would_end(writers, made):
    writers.of(Company.MANY)
    writers.close()
    assert [writer.log for writer in made] == [["start", "close"]] * 2
    assert writers.of(Company.CALLERS) is made[0]
    assert len(made) == 2
