"""When something that an END names is taken for absent: never on one answer, and never at the cost of all others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from txbridge.core.end_record import Decision, EndEntry, EndRecord, Source
from txbridge.kafka.environment import Outside
from txbridge.worker.ingest.half_log import HalfLog
from txbridge.worker.partition_state import PartitionState


class Kafka(Outside):
    """HALF as a reader sees it, and the time."""

    def __init__(self) -> None:
        self.time = 0.0
        #: What a fetch brings, and what the broker says that is asked.
        self.readable, self.reported = 5, 5
        self.position = 5
        self.topic, self.partition = "HALF", 0

    def monotonic(self) -> float:
        return self.time

    def wait(self, event: threading.Event, seconds: float) -> None:
        self.time += seconds

    def take_in(self, _limit: int, timeout: float) -> int:
        came = self.readable - self.position
        self.position = self.readable
        if not came:
            self.time += timeout
        return came

    def end_from(self, reached: int) -> int | None:
        return self.reported if self.reported >= reached else None


def end(offset: int, *half_offsets: int) -> EndRecord:
    return EndRecord(offset, "g", Source.CLIENT, [EndEntry(one, "A" * 32, Decision.COMMIT) for one in half_offsets])


class Log:
    def __init__(self) -> None:
        self.kafka = Kafka()
        queue = SimpleNamespace(read_position=5, must_park=False, entry=lambda _offset: None)
        self.state = SimpleNamespace(half_reader=self.kafka, queue=queue)
        self.log = HalfLog(cast(PartitionState, self.state), self.kafka)
        self.log.take_in = self.kafka.take_in  # type: ignore[method-assign]

    def ready(self, *batch: EndRecord) -> int:
        self.state.queue.read_position = self.kafka.position
        return self.log.ready(batch, max(one.offset for one in batch) + 1)

    def seconds_until(self, wanted: int, *batch: EndRecord) -> float:
        started = self.kafka.time
        while self.ready(*batch) < wanted:
            assert self.kafka.time < started + 100
        return self.kafka.time - started


@pytest.fixture
def log() -> Log:
    return Log()


def test_what_is_read_is_ready_and_nobody_is_asked(log: Log) -> None:
    assert log.ready(end(0, 3, 4), end(1, 0)) == 2
    assert log.kafka.time == 0


def test_what_stands_before_goes_first(log: Log) -> None:
    assert log.ready(end(0, 3), end(1, 9), end(2, 4)) == 1


def test_what_is_on_its_way_is_waited_for(log: Log) -> None:
    log.kafka.reported = 10
    assert log.ready(end(0, 9)) == 0
    log.kafka.readable = 10
    assert log.ready(end(0, 9)) == 1


def test_a_broker_that_does_not_know_it_yet_is_asked_for_five_seconds(log: Log) -> None:
    batch = [end(0, 9), end(1, 3), end(2, 8)]
    while log.kafka.time < 4.9:
        assert log.ready(*batch) == 0
    # One proof is enough for all that wait.
    assert log.seconds_until(3, *batch) < 0.7


def test_one_answer_that_says_more_begins_the_wait_anew(log: Log) -> None:
    while log.kafka.time < 4.5:
        assert log.ready(end(0, 9)) == 0
    log.kafka.reported = 10
    log.kafka.time += 0.3
    assert log.ready(end(0, 9)) == 0
    log.kafka.reported = 5
    assert log.seconds_until(1, end(0, 9)) >= 5.0


def test_answers_below_what_was_read_say_nothing(log: Log) -> None:
    log.kafka.reported = 4
    with pytest.raises(TimeoutError, match="did not come up to offset 10"):
        log.seconds_until(1, end(0, 9))


def test_a_standstill_between_two_answers_proves_nothing(log: Log) -> None:
    assert log.ready(end(0, 9)) == 0
    log.kafka.time += 70
    assert log.ready(end(0, 9)) == 0
    assert log.seconds_until(1, end(0, 9)) > 4.5


def test_standstills_do_not_add_up_to_a_time_out(log: Log) -> None:
    log.kafka.reported = 10
    for _ in range(3):
        assert log.ready(end(0, 9)) == 0
        log.kafka.time += 70
    log.kafka.readable = 10
    assert log.ready(end(0, 9)) == 1


def test_each_of_several_answers_is_waited_for(log: Log) -> None:
    # Two seconds between two: a slow broker takes longer to convince.
    for _ in range(9):
        assert log.ready(end(0, 9)) == 0
        log.kafka.time += 2
    assert log.ready(end(0, 9)) == 1


def test_an_answer_to_a_question_before_the_end_was_read_proves_nothing_about_it(log: Log) -> None:
    # A forged END has waited for nearly all of its time when an honest one comes whose message a former leader does
    # not know: the answers up to then are true, and older than the message.
    forged, honest = end(0, 10**12), end(1, 9)
    while log.kafka.time < 4.9:
        assert log.ready(forged) == 0
    assert log.seconds_until(1, forged, honest) < 0.7
    assert log.ready(forged, honest) == 1
    log.kafka.readable = log.kafka.reported = 10
    assert log.ready(honest) == 1


def test_forged_ends_wait_side_by_side(log: Log) -> None:
    stored, waiting, applied_at = 0, [], []
    for _ in range(200):
        log.kafka.time += 0.05
        if log.kafka.time >= stored:
            # One more every second.
            waiting.append(end(stored, 10**12))
            stored += 1
        for _ in range(log.ready(*waiting)):
            waiting.pop(0)
            applied_at.append(log.kafka.time)
    assert all(5 <= at - number < 5.9 for number, at in enumerate(applied_at))
    assert len(applied_at) == stored - len(waiting) > 5
    assert len(waiting) <= 6


def test_a_full_window_is_parked_before_more_is_read(log: Log) -> None:
    log.state.queue.must_park = True
    log.kafka.readable = 100
    assert log.ready(end(0, 3), end(1, 50)) == 1
    assert log.kafka.position == 5
