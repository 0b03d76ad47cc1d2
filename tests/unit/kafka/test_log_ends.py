"""Questions about log ends: one for all partitions of a leader, and none that another broker's silence delays."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

import pytest

from txbridge.kafka.environment import Outside
from txbridge.kafka.failures import LogGoneError, UnansweredError
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import EARLIEST, View


class Kafka(Outside):
    """Two brokers: the first leads partitions 0 and 1, the second partition 2. And the time."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.ends = {0: 10, 1: 20, 2: 30}
        self.leaders = {0: 1, 1: 1, 2: 2}
        #: Partitions of each request for ends.
        self.asked: list[list[int]] = []
        self.silent: set[int] = set()

    def monotonic(self) -> float:
        return self.time

    def wait(self, event: threading.Event, seconds: float) -> None:
        self.time += seconds

    def views_of(self, _topic: str, partition: int) -> Iterator[tuple[int, View]]:
        for node in {1, 2} - self.silent:
            yield node, View(self.leaders[partition], frozenset({1, 2}), frozenset({1, 2}))

    def offsets_of(self, node: int, _topic: str, partitions: Iterable[int], at: int) -> Mapping[int, int] | None:
        self.asked.append(list(partitions))
        if node in self.silent:
            self.time += 2
            return None
        return {one: 3 if at == EARLIEST else self.ends[one] for one in partitions if self.leaders[one] == node}

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def ends(kafka: Kafka) -> LogEnds:
    return LogEnds(kafka, kafka)


def test_partitions_of_one_leader_share_a_request(kafka: Kafka, ends: LogEnds) -> None:
    for _ in range(2):
        kafka.time += 1
        kafka.asked.clear()
        assert [ends.end_from("END", number, kafka.ends[number], 0.5) for number in (0, 1, 2)] == [10, 20, 30]
    assert kafka.asked == [[0, 1], [2]]


def test_an_end_that_must_be_of_now_is_asked_for_now(kafka: Kafka, ends: LogEnds) -> None:
    ends.end_from("END", 0, 10, 0.5)
    kafka.ends[0] = 11
    assert ends.end_from("END", 0, 10, 0.5) == 10
    assert ends.end_from("END", 0, 10) == 11


def test_an_older_answer_below_what_was_read_since_is_no_sign_of_a_cut(kafka: Kafka, ends: LogEnds) -> None:
    ends.end_from("END", 0, 10, 0.5)
    kafka.ends[0] = 12
    assert ends.end_from("END", 0, 11, 0.5) == 12


def test_a_log_that_was_cut_is_gone_after_ten_seconds_of_such_answers(kafka: Kafka, ends: LogEnds) -> None:
    for _ in range(10):
        assert ends.end_from("END", 0, 11, 0.5) is None
        kafka.time += 1
    with pytest.raises(LogGoneError, match=r"END\[0\] ends at offset 10, below 11"):
        ends.end_from("END", 0, 11, 0.5)


def test_a_leader_that_is_silent_is_given_up_once_another_one_is_named(kafka: Kafka, ends: LogEnds) -> None:
    assert ends.bounds("END", 0) == (3, 10)
    kafka.silent = {1}
    with pytest.raises(UnansweredError, match=r"no leader of END\[0\] says"):
        ends.end_from("END", 0, 10)
    reader = PartitionReader({"bootstrap.servers": "127.0.0.1:1"}, "END", 0, committed=False, ends=ends, outside=kafka)
    with pytest.raises(TimeoutError, match=r"no leader of END\[0\] says"):
        reader.watermarks()
    kafka.leaders[0] = 2
    assert ends.end_from("END", 0, 10) == 10
