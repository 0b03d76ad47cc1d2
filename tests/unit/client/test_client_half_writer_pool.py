"""The choice of the writer for a half message. Messages in company go to one that lingers a moment for others."""

from __future__ import annotations

import threading

import pytest

from txbridge.client.prepare.half_writer_pool import HalfWriters
from txbridge.errors import UsageError


class Writer:
    """A writer that is connected at once, except for the second and later ones while `go_on` is not set."""

    def __init__(self, linger, thread, go_on=None):
        self.linger, self.thread = linger, thread
        self.log = []
        self.on_their_way = 0
        self._go_on = go_on if thread != "half" else None

    @property
    def is_connected(self):
        return self._go_on is None or self._go_on.is_set()

    def wait_for_connection(self):
        assert self._go_on is None or self._go_on.wait(120)

    def start(self):
        if "start" not in self.log:
            self.log.append("start")

    def stop(self):
        self.log.append("stop")

    def close(self):
        self.log.append("close")


@pytest.fixture
def made():
    return []


def writers_of(made, go_on=None):
    def new(linger, thread):
        made.append(Writer(linger, thread, go_on))
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    return writers


def test_few_callers_wait_for_nobody_and_need_one_connection(made):
    assert writers_of(made).for_caller(1, 0).linger == 0
    assert [(writer.thread, writer.log) for writer in made] == [("half", ["start"])]


def test_where_five_would_be_on_their_way_the_next_one_is_taken_and_the_last_one_lingers(made):
    writers = writers_of(made)
    for _ in range(6):
        writers.for_caller(1, 0).on_their_way += 4
    assert [(writer.linger, writer.on_their_way) for writer in made] == [(0, 4)] * 4 + [(0.5, 8)]
    # The first one with room is chosen: few callers use few connections.
    made[1].on_their_way = 3
    assert writers.for_caller(1, 0) is made[1]
    assert writers.for_many(waits=False).linger == 5
    assert [writer.thread for writer in made] == ["half", "half-2", "half-3", "half-4", "half-callers", "half-many"]
    assert all(writer.log == ["start"] for writer in made)


def test_from_16_transactions_on_all_callers_share_the_one_that_lingers(made):
    writers = writers_of(made)
    assert [writers.for_caller(running, 0).linger for running in (15, 16, 32)] == [0, 0.5, 0.5]
    assert [writer.thread for writer in made] == ["half", "half-callers"]


def test_beside_four_local_transactions_up_to_four_callers_share_it_too(made):
    """More would wait behind five, about which librdkafka asks without a pause."""
    writers = writers_of(made)
    numbers = ((7, 3), (8, 4), (9, 4), (11, 7), (15, 10))
    assert [writers.for_caller(*one).linger for one in numbers] == [0, 0.5, 0, 0.5, 0]
    assert [writer.thread for writer in made] == ["half", "half-callers"]


def test_threads_that_need_it_at_once_make_one(made):
    writers = writers_of(made)
    threads = [threading.Thread(target=lambda: writers.for_many(waits=True)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2


def test_who_does_not_wait_gets_another_one_until_it_is_connected(made):
    connected = threading.Event()
    writers = writers_of(made, connected)
    made[0].on_their_way = 4
    for _ in range(3):
        assert writers.for_caller(1, 0) is made[0]
        assert writers.for_many(waits=False) is made[0]
    threading.Timer(0.05, connected.set).start()
    assert writers.for_many(waits=True).linger == 5
    assert writers.for_many(waits=False).linger == 5
    assert len(made) == 3


def test_where_no_other_can_be_made_any_more_the_first_one_serves_everybody(made, caplog):
    """Its key file may be unreadable by now, or no thread can be started. No send fails because of that."""

    def new(linger, thread):
        if made:
            raise UsageError("Kafka settings refused: ssl.key.location failed")
        made.append(Writer(linger, thread))
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    made[0].on_their_way = 4
    for _ in range(3):
        assert writers.for_caller(1, 0) is made[0]
        assert writers.for_many(waits=True) is made[0]
    assert caplog.text.count("half_writer_not_made writer=half-2 ") == 1
    writers.close()


def test_close_ends_all_and_no_other_is_made_that_nobody_would_end(made):
    writers = writers_of(made)
    writers.for_many(waits=True)
    writers.close()
    assert [writer.log for writer in made] == [["start", "stop", "close"]] * 2
    made[0].on_their_way = 4
    assert writers.for_caller(1, 0) is made[0]
    assert len(made) == 2
