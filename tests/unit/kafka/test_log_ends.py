"""The end of a log: one question to each leader, a majority that names the leader, and answers that agree in time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future

import pytest

from txbridge.kafka.admin import Bounds, UnwantedError
from txbridge.kafka.environment import Outside
from txbridge.kafka.errors import LogGoneError, UnansweredError
from txbridge.kafka.log_ends import Agreement, LogEnds
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import EARLIEST, LATEST, View, can_be_proven, proven_end


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


class Brokers:
    """The answer of each broker. A broker without one does not respond."""

    def __init__(self, leaders: dict[int, int], ends: dict[int, int], alive: Collection[int] = (1, 2, 3)) -> None:
        self._leaders, self._ends, self._alive = leaders, ends, frozenset(alive)
        self.replicas = dict.fromkeys(leaders, frozenset({1, 2, 3}))

    def views_of(self, topic: str, partition: int) -> Iterator[tuple[int, View]]:
        assert (topic, partition) == ("HALF", 7)
        for node in self._alive & self._leaders.keys():
            yield node, View(self._leaders[node], self.replicas[node], self._alive)

    def offsets_of(self, node: int, topic: str, partitions: Iterable[int], at: int) -> Mapping[int, int] | None:
        assert (topic, list(partitions), at) == ("HALF", [7], LATEST)
        return {7: self._ends[node]} if node in self._ends else {}

    def close(self) -> None:
        """Nothing is open."""


ALL = frozenset({1, 2, 3})


@pytest.mark.parametrize(
    ("leaders", "ends", "alive", "end"),
    [
        ({1: 2, 2: 2, 3: 2}, {2: 40}, ALL, 40),
        ({2: 2, 3: 2}, {2: 40}, {2, 3}, 40),
        ({2: 2, 3: 2}, {2: 40}, ALL, 40),
        # A leader that is cut off is outvoted.
        ({1: 1, 2: 2, 3: 2}, {1: 5, 2: 40}, ALL, 40),
        ({1: 3, 2: 2, 3: 3}, {2: 5, 3: 40}, ALL, 40),
        ({1: 1, 2: 1, 3: 3}, {3: 5, 1: 40}, ALL, 40),
        # Its word, and that of no other broker, proves nothing.
        ({1: 1}, {1: 5}, ALL, None),
        ({1: 1, 2: 2}, {1: 5, 2: 40}, ALL, None),
        ({1: -1, 2: -1, 3: -1}, {-1: 5}, ALL, None),
        # The leader says that it leads no more.
        ({1: 2, 2: 2, 3: 2}, {}, ALL, None),
        ({}, {}, ALL, None),
        ({}, {}, {}, None),
    ],
)
def test_a_majority_of_the_replicas_proves_the_end(
    leaders: dict[int, int], ends: dict[int, int], alive: Collection[int], end: int | None
) -> None:
    assert proven_end(Brokers(leaders, ends, alive), "HALF", 7) == end


@pytest.mark.parametrize(
    ("replicas", "alive", "end", "can_be"),
    [
        # These differ, so they are no majority.
        ({1: {1, 2, 3}, 2: {2, 3, 4}, 3: {2, 3, 5}}, {1, 2, 3}, None, True),
        ({1: {1}, 2: {1}}, {1, 2}, 40, True),
        ({1: {1, 2}}, {1}, None, False),
        # The second one has it no more: it has no vote.
        ({1: {1, 2}, 2: {1}}, {1, 2}, None, True),
        # Alive and silent: it may still prove it.
        ({1: {1, 2, 3}}, {1, 2, 3}, None, True),
        ({}, {1, 2, 3}, None, True),
    ],
)
def test_a_majority_of_other_replicas_than_three(
    replicas: dict[int, set[int]], alive: set[int], end: int | None, can_be: bool
) -> None:
    brokers = Brokers(dict.fromkeys(replicas, 1), {1: 40}, alive)
    brokers.replicas = {node: frozenset(known) for node, known in replicas.items()}
    assert proven_end(brokers, "HALF", 7) == end
    assert can_be_proven(brokers, "HALF", 7) is can_be


@pytest.mark.parametrize(
    ("most_apart", "answers"),
    [
        (8, {0: False, 5: False, 9: False, 10: True, 11: True}),
        # Too few, however long it took.
        (100, {0: False, 50: False, 51: True}),
        # The process stood still for a minute, and so did the broker, whose answer is old: the count begins anew.
        (8, {0: False, 5: False, 65: False, 66: False, 70: False, 74: False, 75: True}),
    ],
    ids=["enough", "too few", "a gap"],
)
def test_three_answers_over_ten_seconds_without_a_gap_are_enough(most_apart: float, answers: dict[int, bool]) -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=most_apart)
    assert {at: agreement.note(at) for at in answers} == answers


def test_an_answer_to_the_contrary_begins_it_anew() -> None:
    agreement = Agreement(seconds=10, answers=3, most_apart=8)
    assert [agreement.note(at) for at in (0, 5)] == [False, False]
    agreement.note_contradiction()
    assert [agreement.note(at) for at in (10, 15, 19, 20)] == [False, False, False, True]


class LastMoment(Future[str]):
    """An answer that comes right after a look at it has ended."""

    def come(self) -> bool:
        """Returns false: the answer is still wanted."""
        if not self.done():
            self.set_result("here")
        return False

    def result(self, timeout: float | None = None) -> str:
        try:
            return super().result(timeout)
        except TimeoutError:
            self.come()
            raise


def test_an_answer_that_comes_while_a_look_ends_is_the_answer() -> None:
    answer = LastMoment()
    assert Bounds(is_unwanted=answer.come).result_of(answer) == "here"


def test_an_answer_that_nobody_wants_any_more_is_not_waited_for() -> None:
    with pytest.raises(UnwantedError):
        Bounds(is_unwanted=lambda: True).result_of(Future())
