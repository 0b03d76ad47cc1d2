"""Questions about log ends: one for all partitions of a leader, none out of date, and a new client after a failure."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from txbridge.kafka.environment import Outside
from txbridge.kafka.failures import LogGoneError
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.partition_reader import PartitionReader


class Kafka(Outside):
    """Two brokers: the first leads partitions 0 and 1, the second partition 2. And the time."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.ends = {0: 10, 1: 20, 2: 30}
        #: Partitions of each request for ends.
        self.asked: list[list[int]] = []
        self.fails = False
        self.delay = 0.0
        self.clients = self.closed = 0

    def monotonic(self) -> float:
        return self.time

    def wait(self, event: threading.Event, seconds: float) -> None:
        self.time += seconds

    def consumer(self, config: Any) -> Consumer:
        return self.connect()

    def connect(self) -> Consumer:
        self.clients += 1
        made = SimpleNamespace(
            list_topics=self.list_topics,
            offsets_for_times=self.offsets_for_times,
            assign=lambda _places: None,
            close=self.note_closed,
        )
        return cast(Consumer, made)

    def note_closed(self) -> None:
        self.closed += 1

    def list_topics(self, topic: str, timeout: float) -> Any:
        partitions = {number: SimpleNamespace(id=number, leader=2 if number == 2 else 1) for number in self.ends}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions)})

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked.append([place.partition for place in places])
        self.time += self.delay
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(place.topic, place.partition, self.ends[place.partition]) for place in places]


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def ends(kafka: Kafka) -> LogEnds:
    return LogEnds(kafka.connect, kafka)


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


def test_a_late_answer_is_not_believed(kafka: Kafka, ends: LogEnds) -> None:
    kafka.delay = 2.5
    with pytest.raises(KafkaException, match="3 answers about the end of END came late"):
        ends.end_from("END", 0, 10)


def test_after_a_failure_the_next_question_has_a_new_client(kafka: Kafka, ends: LogEnds) -> None:
    kafka.fails = True
    with pytest.raises(KafkaException):
        ends.end_from("END", 0, 10)
    kafka.fails = False
    assert ends.end_from("END", 0, 10) == 10
    assert kafka.clients == 2


def test_a_reader_that_was_closed_asks_with_its_next_client(kafka: Kafka) -> None:
    reader = PartitionReader({"bootstrap.servers": "127.0.0.1:1"}, "END", 1, committed=False, outside=kafka)
    for clients in (1, 2):
        assert reader.ends.end_from("END", 1, 20) == 20
        assert (kafka.clients, kafka.closed) == (clients, clients - 1)
        reader.close()


def test_a_reader_that_is_closed_leaves_the_client_of_the_process_in_use(kafka: Kafka, ends: LogEnds) -> None:
    ends.end_from("END", 1, 20)
    reader = PartitionReader({"bootstrap.servers": "127.0.0.1:1"}, "END", 1, committed=False, ends=ends, outside=kafka)
    reader.start(0)
    reader.close()
    ends.end_from("END", 1, 20)
    assert (kafka.clients, kafka.closed) == (2, 1)
