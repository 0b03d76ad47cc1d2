"""Knowledge about topics: one topic's trouble is no other's, it is forgotten in time, and its memory is bounded."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import TransactionState
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.environment import Outside
from txbridge.kafka.failures import RecordFailure, RecordKind
from txbridge.worker.gates import topic_health
from txbridge.worker.gates.topic_health import TopicHealth

KIB = 1024
#: Kafka's answer about every topic that is missing.
MISSING: Future[Any] = Future()
MISSING.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))


class Kafka(Outside):
    """Topics with so many partitions each, and the time."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.seconds = 1_000.0
        self.asked: list[str] = []
        #: Topics to which this user may not write.
        self.denied: set[str] = set()

    def monotonic(self) -> float:
        return self.seconds

    def uniform(self, least: float, most: float) -> float:
        return (least + most) / 2

    def describe_topics(self, topics: Any, **_options: object) -> dict[str, Future[Any]]:
        answers = dict.fromkeys(topics.topic_names, MISSING)
        self.asked += answers
        for topic in answers.keys() & self.partitions:
            allowed = AclOperation.READ if topic in self.denied else AclOperation.ALL
            described = {"partitions": [None] * self.partitions[topic], "authorized_operations": [allowed]}
            answers[topic] = Future()
            answers[topic].set_result(SimpleNamespace(**described))
        return answers


@pytest.fixture
def kafka() -> Kafka:
    return Kafka(bad=2, good=2)


@pytest.fixture
def health(kafka: Kafka) -> TopicHealth:
    client: Any = kafka
    made = TopicHealth(ControllerRequests(lambda: client), kafka)
    made.look_up(["bad", "good"])
    return made


def turn(kafka: Kafka, health: TopicHealth, seconds: float) -> None:
    """What the commit loop does in a turn, so many seconds later."""
    kafka.seconds += seconds
    health.begin_draft()
    health.look_up(["bad", "good"])


def message(offset: int = 0, topic: str = "bad", size: int = 100, state=TransactionState.PENDING) -> HalfEntry:
    return HalfEntry(offset, "0" * 32, "group", topic, 0, size, 0, state)


def refused(*which: int, alone: bool = False) -> list[RecordFailure]:
    return [RecordFailure(RecordKind.REAL, "bad", one, "no", whole_topic=False, alone=alone) for one in which]


def test_p8_one_refused_batch_is_forgotten_after_twenty_seconds(kafka: Kafka, health: TopicHealth):
    assert (health.room, health.is_clear("bad")) == (None, True)
    assert health.guilty("bad", refused(1, 2)) == ()
    assert health.limits == {"bad": 256 * KIB}
    assert (health.is_clear("bad"), health.is_clear("good")) == (False, True)
    turn(kafka, health, 19.9)
    assert health.limits == {"bad": 256 * KIB}
    assert health.room is not None
    # Fresh messages go together again, whatever their topic.
    turn(kafka, health, 1.2)
    assert (dict(health.limits), health.room, health.is_clear("bad")) == ({}, None, True)


def test_p8_a_topic_that_goes_on_refusing_keeps_its_limit(kafka: Kafka, health: TopicHealth):
    health.guilty("bad", refused(1, 2))
    for number in range(60):
        turn(kafka, health, 10)
        health.worked(["bad"])
        health.guilty("bad", refused(number, alone=True))
    assert health.limits == {"bad": 256 * KIB}


def test_p8_the_bad_record_of_a_batch_is_found_in_six_refusals(health: TopicHealth):
    found, limits = [], []
    for _ in range(6):
        found.append(health.guilty("bad", refused(1, 2)))
        limits.append(health.limits["bad"] // KIB)
    assert limits == [256, 64, 16, 4, 1, 1]
    assert found == [(), (), (), (), (), refused(1, 2)]


def test_p8_after_ten_refusals_in_a_row_all_its_messages_of_a_draft_are_held(health: TopicHealth):
    for _ in range(10):
        assert health.guilty("bad", refused(1, 2)) is not None
    assert health.guilty("bad", refused(1, 2)) is None
    health.worked(["bad"])
    assert health.guilty("bad", refused(1, 2)) is not None


def test_p8_a_record_that_is_too_large_is_no_obstacle_to_other_topics_and_to_its_own_for_a_minute(
    kafka: Kafka, health: TopicHealth
):
    health.refuse(message(size=5_000), "too large", topic="bad", too_large=True)
    health.held(message(size=5_000))
    assert (health.is_clear("bad"), health.is_clear("good")) == (False, True)
    turn(kafka, health, 59.9)
    assert not health.is_clear("bad")
    assert health.obstacle(message(1, size=5_000)) == "too large"
    assert health.obstacle(message(1, size=4_999)) is None
    turn(kafka, health, 0.2)
    assert health.is_clear("bad")
    assert health.obstacle(message(1, size=5_000)) is None


def test_p8_a_held_record_that_is_too_large_is_tried_at_most_once_a_minute_for_ever(kafka: Kafka, health: TopicHealth):
    large = message(size=5_000, state=TransactionState.HELD)
    health.refuse(large, "too large", topic="bad", too_large=True)
    tried = []
    for second in range(1_200):
        turn(kafka, health, 1)
        if health.obstacle_of_held(large) is None:
            tried.append(second)
            health.refuse(large, "too large", topic="bad", too_large=True)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[-10:] == [60] * 10


def test_p8_a_blocked_topic_that_nobody_sends_to_any_more_slows_no_other(kafka: Kafka, health: TopicHealth):
    health.block_topic("bad", "it does not answer")
    assert (health.is_clear("bad"), health.is_clear("good")) == (False, True)
    assert health.problem_of("bad") == "it does not answer"
    # It may take one message after 2 s, and is remembered for two minutes more.
    turn(kafka, health, 2)
    assert health.problem_of("bad") is None
    assert health.room is not None
    assert [health.room(message(number)) for number in range(2)] == [True, False]
    turn(kafka, health, 119.9)
    assert health.room is not None
    turn(kafka, health, 1.2)
    assert health.room is None
    assert health.is_clear("bad")


def test_p8_a_blocked_topic_takes_four_times_as_many_after_each_success(kafka: Kafka, health: TopicHealth):
    health.block_topic("bad", "it does not answer")
    taken = []
    while True:
        turn(kafka, health, 3)
        if health.room is None:
            break
        taken.append(sum(health.room(message(number)) is True for number in range(2_000)))
        health.worked(["bad"])
    assert taken == [1, 4, 16, 64, 256]


def test_p8_a_block_lasts_twice_as_long_each_time_and_two_seconds_again_after_a_success(
    kafka: Kafka, health: TopicHealth
):
    def block() -> int:
        health.block_topic("bad", "it does not answer")
        for second in range(1, 100):
            turn(kafka, health, 1)
            if health.problem_of("bad") is None:
                return second
        raise AssertionError

    assert [block() for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
    health.worked(["bad"])
    assert block() == 2


def test_p2_every_message_to_a_partition_that_is_missing_is_told_so_and_the_topic_is_asked_about_again(
    kafka: Kafka, health: TopicHealth
):
    why = "topic bad has 2 partitions, so no partition 7"
    assert [health.problem_of_partition("bad", 7) for _ in range(3)] == [why] * 3
    assert health.problem_of_partition("bad", 1) is None
    kafka.partitions["bad"] = 8
    kafka.asked.clear()
    health.look_up(["bad", "good"])
    assert kafka.asked == ["bad"]
    assert health.problem_of_partition("bad", 7) is None


def test_p8_each_check_topic_without_the_right_to_write_is_logged_once(
    kafka: Kafka, health: TopicHealth, monkeypatch: pytest.MonkeyPatch
):
    warned: list[tuple[str, str]] = []
    log = SimpleNamespace(warning=lambda event, *, topic, error: warned.append((event, topic)))
    monkeypatch.setattr(topic_health, "_log", log)
    checks = [f"RMQ_SYS_TRANS_CHECK.{group}" for group in "abc"]
    kafka.partitions |= dict.fromkeys(checks, 1)
    kafka.denied = {*checks, "bad"}

    for _ in range(100):
        kafka.seconds += 1
        health.look_up([*checks, "bad"])
    assert warned == [("check_refused", check) for check in checks]
    # An hour in which checks are tried once a minute, the longest pause.
    for _ in range(60):
        kafka.seconds += 60
        health.look_up(checks)
    assert len(warned) == 3
    # Granted, and taken away again.
    kafka.denied.remove(checks[1])
    kafka.seconds += 60
    health.look_up(checks)
    kafka.denied.add(checks[1])
    kafka.seconds += 61
    health.look_up(checks)
    assert warned[3:] == [("check_refused", checks[1])]
    # Nobody asks any more.
    kafka.seconds += 200
    health.look_up(["good"])
    assert kept(health) <= 10


def kept(health: TopicHealth) -> int:
    """Entries of all that it remembers."""
    return sum(len(value) for value in vars(health).values() if hasattr(value, "__len__"))


def test_p9_a_hundred_thousand_invented_topics_leave_no_more_than_those_of_a_moment(kafka: Kafka, health: TopicHealth):
    most = 0
    for second in range(100):
        kafka.seconds += 1
        names = [f"invented-{second}-{number}" for number in range(1_000)]
        health.look_up(names)
        assert health.problem_of(names[0]) == f"topic {names[0]} does not exist"
        most = max(most, kept(health))
    # Those of this second and the one before.
    assert most <= 2_100
    turn(kafka, health, 2)
    assert kept(health) <= 10


def test_p9_ten_thousand_topics_that_came_and_went_leave_nothing(kafka: Kafka, health: TopicHealth):
    most = 0
    for second in range(1_000):
        kafka.seconds += 1
        names = [f"short-lived-{second}-{number}" for number in range(10)]
        kafka.partitions = {"bad": 2, "good": 2, **dict.fromkeys(names, 1)}
        health.look_up(names)
        for number, name in enumerate(names):
            health.guilty(name, refused(1, 2))
            health.block_topic(name, "it does not answer")
            # Its message is given up by an operator.
            large = message(number, name, state=TransactionState.HELD)
            health.refuse(large, "too large", topic=name, too_large=True)
            health.abandoned([large])
        most = max(most, kept(health))
    # 10 a second: limits for 20 s, and for two minutes and a little answers, blocks, rests and size limits.
    assert most <= 10 * (22 + 4 * 125)
    for _ in range(2):
        turn(kafka, health, 200)
    assert kept(health) <= 10
