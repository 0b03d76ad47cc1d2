"""Half messages that an END names and that count as absent: only after proof, and without delaying all others."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord, Source
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.environment import Outside
from txbridge.kafka.proven_end import View
from txbridge.worker.ingest.half_log import HalfLog
from txbridge.worker.partition_context import PartitionState


class Kafka(Outside):
    """HALF as a reader sees it, and the time."""

    def __init__(self) -> None:
        self.time = 0.0
        #: The end of a fetch.
        self.readable = 5
        self.position = 5
        self.topic, self.partition = "HALF", 0
        #: The end that a majority of the brokers proves, and the number of requests to them.
        self.proven: int | None = 5
        self.asked = 0

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

    def views_of(self, _topic: str, _partition: int) -> Iterator[tuple[int, View]]:
        self.asked += 1
        if self.proven is not None:
            yield 1, View(1, frozenset({1}), frozenset({1}))

    def offsets_of(self, _node: int, _topic: str, partitions: Iterable[int], _at: int) -> Mapping[int, int] | None:
        return None if self.proven is None else dict.fromkeys(partitions, self.proven)

    def close(self) -> None:
        """Nothing is open."""


def end(offset: int, *half_offsets: int) -> DecisionRecord:
    return DecisionRecord(
        offset, "g", Source.CLIENT, [DecisionEntry(one, "A" * 32, Decision.COMMIT) for one in half_offsets]
    )


class Log:
    def __init__(self) -> None:
        self.kafka = Kafka()
        queue = SimpleNamespace(read_position=5, must_park=False, entry=lambda _offset: None)
        checkpoint = SimpleNamespace(read=9, marks={})
        self.state = SimpleNamespace(half_reader=self.kafka, ends=self.kafka, queue=queue, checkpoint=checkpoint)
        self.log = HalfLog(cast(PartitionState, self.state), self.kafka, self.kafka, BrokerClock(0, self.kafka))
        self.log.take_in = self.kafka.take_in  # type: ignore[method-assign]

    def ready(self, *batch: DecisionRecord) -> int:
        self.state.queue.read_position = self.kafka.position
        return self.log.count_ready(batch, max(one.offset for one in batch) + 1)

    def seconds_until(self, wanted: int, *batch: DecisionRecord) -> float:
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


def test_what_is_proven_to_be_absent_is_judged_at_once_and_one_proof_is_enough(log: Log) -> None:
    assert log.ready(end(0, 9), end(1, 3), end(2, 8)) == 3
    assert log.kafka.asked == 1


def test_nobody_is_asked_again_while_it_is_on_its_way(log: Log) -> None:
    log.kafka.proven = 10
    for _ in range(5):
        log.kafka.time += 0.05
        assert log.ready(end(0, 9)) == 0
    assert log.kafka.asked == 1


def test_without_a_majority_nothing_is_absent(log: Log) -> None:
    log.kafka.proven = None
    with pytest.raises(TimeoutError, match="nor does a majority of its brokers say who leads it"):
        log.seconds_until(1, end(0, 9))


def test_answers_below_what_was_read_say_nothing(log: Log) -> None:
    log.kafka.proven = 4
    with pytest.raises(TimeoutError, match="did not come up to offset 10"):
        log.seconds_until(1, end(0, 9))


def test_standstills_do_not_add_up_to_a_time_out(log: Log) -> None:
    log.kafka.proven = 10
    for _ in range(3):
        assert log.ready(end(0, 9)) == 0
        log.kafka.time += 70
    log.kafka.readable = 10
    assert log.ready(end(0, 9)) == 1


def test_a_proof_from_before_the_end_was_read_proves_nothing_about_it(log: Log) -> None:
    # The end is proven for a forged END first. Then an honest END comes, whose message a former leader does not know.
    # The proof is true, but older than that message.
    forged, honest = end(0, 10**12), end(1, 9)
    assert log.ready(forged) == 1
    log.kafka.proven = None
    assert log.ready(honest) == 0
    log.kafka.readable = 10
    assert log.ready(honest) == 1


def test_forged_ends_do_not_keep_each_other_waiting(log: Log) -> None:
    waiting = [end(number, 10**12) for number in range(200)]
    while waiting:
        log.kafka.time += 0.05
        del waiting[: log.ready(*waiting)]
    assert log.kafka.time < 1
    assert log.kafka.asked == 1


def test_a_full_window_is_parked_before_more_is_read(log: Log) -> None:
    log.state.queue.must_park = True
    log.kafka.readable = 100
    assert log.ready(end(0, 3), end(1, 50)) == 1
    assert log.kafka.position == 5


def test_the_reader_that_waits_for_records_is_asked_for_nothing_that_it_would_answer_later(log: Log) -> None:
    """Kafka answers a connection in order: the request would wait behind the pending fetch, and decisions behind it."""
    asked: list[tuple[str, object]] = []
    log.state.half_reader = SimpleNamespace(
        position=7, topic="half", partition=0, ask_who_leads=lambda: asked.append(("who leads", None))
    )
    log.state.body_reader = log.state.decision_reader = SimpleNamespace(close_if_unused=lambda _seconds: None)
    log.state.ends = SimpleNamespace(end_from=lambda topic, _, reached, _age: asked.append((topic, reached)))
    log.log.look_at_end()
    assert asked == []
    log.kafka.time += 5.0
    log.log.look_at_end()
    log.log.look_at_end()
    assert asked == [("who leads", None), ("half", 9)]
