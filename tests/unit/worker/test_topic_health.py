"""Knowledge about topics: one topic's trouble is no other's, it is forgotten in time, and its memory is bounded."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.core.plan.draft import Draft
from txbridge.core.states import TransactionState
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.environment import Outside
from txbridge.kafka.errors import UnansweredError
from txbridge.kafka.topic_lookup import TopicMemory
from txbridge.worker.gates import topic_health
from txbridge.worker.gates.topic_health import TopicHealth

#: Kafka's answer about every topic that is missing.
MISSING: Future[Any] = Future()
MISSING.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))


class Kafka(Outside):
    """Topics with so many partitions each, and the time."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.seconds = 1_000.0
        self.asked: list[str] = []
        #: The number of topics after which questions are not answered.
        self.fails_after = sys.maxsize
        #: Topics to which this user may not write.
        self.denied: set[str] = set()
        #: The configuration of every topic.
        self.configs: dict[str, str] = {}

    def monotonic(self) -> float:
        return self.seconds

    def uniform(self, least: float, most: float) -> float:
        return (least + most) / 2

    def poll(self, _seconds: float) -> None: ...

    def describe_topics(self, topics: Any, **_options: object) -> dict[str, Future[Any]]:
        answers = dict.fromkeys(topics.topic_names, MISSING)
        self.asked += answers
        if len(self.asked) > self.fails_after:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        for topic in answers.keys() & self.partitions:
            allowed = AclOperation.READ if topic in self.denied else AclOperation.ALL
            partitions = [SimpleNamespace(leader=0)] * self.partitions[topic]
            described = {"partitions": partitions, "authorized_operations": [allowed]}
            answers[topic] = Future()
            answers[topic].set_result(SimpleNamespace(**described))
        return answers

    def describe_configs(self, resources: Any, **_options: object) -> dict[Any, Future[Any]]:
        answers = {}
        for resource in resources:
            answers[resource] = Future()
            answers[resource].set_result({name: SimpleNamespace(value=text) for name, text in self.configs.items()})
        return answers


@pytest.fixture
def kafka() -> Kafka:
    return Kafka(bad=2, good=2)


@pytest.fixture
def health(kafka: Kafka) -> TopicHealth:
    client: Any = kafka
    made = TopicHealth(KafkaCluster(lambda: client), TopicMemory(), kafka)
    made.look_up(["bad", "good"])
    return made


def turn(kafka: Kafka, health: TopicHealth, seconds: float) -> None:
    """What the commit loop does in a turn, so many seconds later."""
    kafka.seconds += seconds
    health.begin_draft()
    health.look_up(["bad", "good"])


def message(offset: int = 0, topic: str = "bad", size: int = 100, state=TransactionState.PENDING) -> HalfEntry:
    return HalfEntry(offset, "0" * 32, "group", topic, 0, size, 0, state)


def test_p8_a_topic_that_has_refused_something_is_judged_by_its_rules_for_two_minutes(
    kafka: Kafka, health: TopicHealth
):
    assert health.refusal_of("bad", None, 0, 0) is None
    kafka.configs = {"cleanup.policy": "compact", "message.timestamp.after.max.ms": "3600000"}
    # The rules have changed, so they may explain the refusal.
    assert health.explain_refusal("bad", "refused", [(0, b"key", 0, 1)], 0)
    assert (health.are_clear({"bad"}), health.are_clear({"good"})) == (False, True)
    why = "topic bad: it has no key, and the topic is compacted (cleanup.policy)"
    assert health.refusal_of("bad", None, 0, 0) == why
    assert health.refusal_of("bad", b"key", 3_600_000, 0) is None
    assert health.refusal_of("bad", b"key", 7_200_000, 0) == (
        "topic bad: its timestamp is more than 1h ahead (message.timestamp.after.max.ms)"
    )
    # Nothing is wrong with this one, and it was refused again.
    assert not health.explain_refusal("bad", "refused", [(0, b"key", 0, 1)], 0)
    turn(kafka, health, 119.9)
    assert not health.are_clear({"bad"})
    turn(kafka, health, 1.2)
    assert health.are_clear({"bad"})


def test_p8_a_look_up_of_many_topics_goes_on_where_kafka_has_not_answered(kafka: Kafka, health: TopicHealth):
    kafka.partitions = {f"topic{number:03}": 1 for number in range(1_000)}
    kafka.asked.clear()
    kafka.fails_after = 500
    with pytest.raises(UnansweredError):
        health.look_up(kafka.partitions)
    kafka.asked.clear()
    kafka.fails_after = sys.maxsize
    health.look_up(kafka.partitions)
    # Two requests of 200 were answered before.
    assert sorted(kafka.asked) == [*kafka.partitions][400:]
    assert all(map(health.is_open, kafka.partitions))


def test_p8_rules_that_go_on_explaining_refusals_stay_known_and_are_asked_for_again(kafka: Kafka, health: TopicHealth):
    kafka.configs = {"cleanup.policy": "compact"}
    health.explain_refusal("bad", "refused", [], 0)
    for _ in range(10):
        turn(kafka, health, 15)
        assert health.refusal_of("bad", None, 0, 0) is not None
    # Somebody has changed the topic.
    kafka.configs = {"cleanup.policy": "delete"}
    turn(kafka, health, 10)
    assert health.refusal_of("bad", None, 0, 0) is None


def test_p8_a_topic_with_small_batches_gets_small_batches_before_it_has_refused_one(kafka: Kafka):
    kafka.configs = {"max.message.bytes": "20000"}
    client: Any = kafka
    health = TopicHealth(KafkaCluster(lambda: client), TopicMemory(), kafka)
    health.look_up(["bad"])
    assert health.limits == {"bad": 19_900}
    assert health.room is not None
    assert [health.room(message(size=19_900)) for _ in range(2)] == [True, True]
    # A message that may be too large is held, and is tried in a Kafka transaction of its own.
    why = "topic bad: the message is too large (max.message.bytes)"
    assert (health.obstacle_of_new(message(size=20_000)), health.obstacle_of_new(message(1, size=30_000))) == (
        None,
        why,
    )
    large, larger = (message(at, size=30_000 + at, state=TransactionState.HELD) for at in (1, 2))
    # One that is due again keeps its place. Otherwise others that are refused would always pass it.
    assert [health.obstacle_of_held(one) for one in (large, larger, large)] == [why] * 3
    assert health.lanes.next_probe(kafka.seconds) == ("bad", [1])


def test_p8_a_topic_that_takes_nothing_is_blocked_twice_as_long_each_time(kafka: Kafka, health: TopicHealth):
    def block() -> int:
        health.block_topic("bad", "it does not answer")
        assert not health.are_clear({"bad"})
        for second in range(1, 100):
            turn(kafka, health, 1)
            if health.problem_of("bad") is None:
                return second
        raise AssertionError

    assert [block() for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
    # What was held meanwhile goes first, one message at a time at first.
    for offset in range(10):
        assert health.obstacle_of_held(message(offset, state=TransactionState.HELD)) == "it does not answer"
    assert health.obstacle_of_new(message(10)) == "it does not answer"
    taken = []
    while (probe := health.lanes.next_probe(kafka.seconds)) is not None:
        taken.append(len(probe.offsets))
        health.lanes.note_taken(*probe, kafka.seconds)
    assert taken == [1, 4, 5]
    assert health.obstacle_of_new(message(10)) is None
    assert block() == 2


def test_p2_every_message_to_a_partition_that_is_missing_is_told_so_and_the_topic_is_asked_about_again(
    kafka: Kafka, health: TopicHealth
):
    why = "topic bad has 2 partitions, so no partition 7"
    assert [health.problem_of_partition("bad", 7) for _ in range(3)] == [why] * 3
    assert health.problem_of_partition("bad", 1) is None
    kafka.partitions["bad"] = 8
    turn(kafka, health, 1)
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
    fields = [*vars(health).values(), *vars(health.lanes).values()]
    return sum(len(value) for value in fields if hasattr(value, "__len__"))


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
            health.explain_refusal(name, "refused", [], 0)
            health.block_topic(name, "it does not answer")
            large = message(number, name, state=TransactionState.HELD)
            health.lanes.note_too_large(name, large.size)
            health.note_refusal(name, number, "too large")
            # It is delivered after all.
            draft = Draft(HalfQueue(CheckPolicy()), 0)
            draft.add_delivery(large)
            health.on_committed(draft, Names(), has_discards=False)
        most = max(most, kept(health))
    # 10 a second: rules and sizes for 20 s, answers and lanes for two minutes and a little.
    assert most <= 10 * (2 * 22 + 2 * 126)
    for _ in range(2):
        turn(kafka, health, 200)
    assert kept(health) <= 10


def test_p8_what_a_topic_takes_is_believed_for_a_second_and_asked_once_for_all_partitions(kafka: Kafka):
    client: Any = kafka
    requests, memory = KafkaCluster(lambda: client), TopicMemory()
    two = [TopicHealth(requests, memory, kafka) for _ in range(2)]
    for health in two:
        health.look_up(["good"])
    assert kafka.asked == ["good"]
    kafka.configs = {"max.message.bytes": "77"}
    assert [health.why_endless({"good"}) for health in two] == [None, None]
    kafka.seconds += 1
    why = "topic good: max.message.bytes is 77, and Kafka's own transaction marker takes 78 bytes: raise it"
    assert [health.why_endless({"good"}) for health in two] == [why, why]
    # The next plan knows it, too.
    assert [health.problem_of("good") for health in two] == [why, why]


def test_p8_a_probe_that_ends_before_kafka_is_not_repeated_at_once(kafka: Kafka, health: TopicHealth):
    probes = 0
    for _ in range(10):
        health.lanes.let_wait(7, ["bad"], kafka.seconds)
        probes += health.lanes.next_probe(kafka.seconds) is not None
        health.note_refusal("bad", 7, "topic bad: it has no key")
        kafka.seconds += 0.1
    # The first, and one behind a pause of two seconds.
    assert probes == 1
    assert health.lanes.next_try == float("inf")
