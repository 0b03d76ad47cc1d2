"""Changes of its topics that a client notices."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tests.support.client_fakes import refusal
from txbridge.client.kafka import topic_watch
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.core.names import Names

MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Kafka:
    """Answers and counts looks at the topics."""

    def __init__(self, **answers):
        self.answers = answers
        self.looks = []

    def __call__(self, topic):
        self.looks.append(topic)
        answer = self.answers.get(topic, 1)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1_000.0

    monkeypatch.setattr(topic_watch.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def watch(clock):
    return TopicWatch(Names("ns"), 4)


def events(caplog):
    return [(record.event, record.fields["topic"]) for record in caplog.records]


def test_a_real_topic_is_looked_up_once_and_told_if_it_is_missing(watch, caplog):
    kafka = Kafka(missing=MISSING, denied=DENIED, away=refusal(KafkaError._TIMED_OUT))
    for _ in range(3):
        for topic in ("there", "missing", "denied", "away"):
            watch.note(topic)
        for _ in range(10):
            watch.step(kafka)
    assert kafka.looks == ["there", "missing", "denied", "away"]
    assert events(caplog) == [("real_topic_missing", "missing")]


def test_names_made_up_for_each_message_are_not_all_looked_up(watch):
    kafka = Kafka()
    for number in range(5_000):
        watch.note(f"topic-{number}")
        watch.step(kafka)
    assert len(kafka.looks) == 1_000


def test_what_was_noted_last_is_looked_at_in_the_end_but_not_for_long(watch, caplog):
    kafka = Kafka(**{f"t{number}": MISSING for number in range(10)})
    for number in range(10):
        watch.note(f"t{number}")
    watch.end(kafka)
    assert events(caplog) == [("real_topic_missing", f"t{number}") for number in range(3)]
    away = Kafka(t3=refusal(KafkaError._TIMED_OUT))
    watch.end(away)
    assert away.looks == ["t3"]


def test_half_is_looked_at_now_and_then_and_refused_once_it_has_changed(watch, clock, caplog):
    half = "ns.RMQ_SYS_TRANS_HALF_TOPIC"
    kafka = Kafka(**{half: 4})
    for _ in range(100):
        watch.step(kafka)
        clock.now += 1
    assert kafka.looks == [half] * 3
    assert watch.refusal == ""
    kafka.answers[half] = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    clock.now += 30
    watch.step(kafka)
    assert watch.refusal == ""
    kafka.answers[half] = 6
    for _ in range(3):
        clock.now += 30
        watch.step(kafka)
    assert f"partitions of {half} has changed: 6 instead of the 4" in watch.refusal
    assert "use another namespace" in watch.refusal
    assert events(caplog) == [("half_partitions_changed", half)]
