"""Changes of its topics that a client notices."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge.client.kafka import topic_watch
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.core.names import Names


class Kafka:
    """Answers and counts requests about real topics."""

    def __init__(self):
        self.missing = ()
        self.requests = []

    def find_missing(self, topics):
        self.requests.append(list(topics))
        return [topic for topic in topics if topic in self.missing]


@pytest.fixture
def kafka():
    return Kafka()


@pytest.fixture
def watch(kafka):
    return TopicWatch(Names("ns"), 4, kafka.find_missing)


def events(caplog):
    return [(record.event, record.fields["topic"]) for record in caplog.records]


def test_a_real_topic_is_looked_up_once_and_logged_if_it_is_missing(watch, kafka, caplog):
    kafka.missing = ("missing", "late")
    for _ in range(3):
        for topic in ("there", "missing"):
            watch.note_topic(topic)
        watch.look_at_new_topics()
    watch.note_topic("late")
    watch.look_at_new_topics()
    assert kafka.requests == [["there", "missing"], ["late"]]
    assert events(caplog) == [("real_topic_missing", "missing"), ("real_topic_missing", "late")]


def test_names_made_up_for_each_message_are_not_all_looked_up(watch, kafka):
    for number in range(5_000):
        watch.note_topic(f"topic-{number}")
        if number % 100 == 0:
            watch.look_at_new_topics()
    watch.look_at_new_topics()
    assert sum(map(len, kafka.requests)) == 1_000
    assert len(kafka.requests) == 11


def test_half_is_refused_once_it_has_changed(watch, caplog):
    half = "ns.RMQ_SYS_TRANS_HALF_TOPIC"
    watch.note_partitions(4)
    assert watch.refusal == ""
    for partitions in (6, 6, 7):
        watch.note_partitions(partitions)
    assert f"partitions of {half} has changed: 6 instead of the 4" in watch.refusal
    assert "use another namespace" in watch.refusal
    assert events(caplog) == [("half_partitions_changed", half)]


class Admin:
    """An admin client that answers at once."""

    def __init__(self, settings):
        assert "error_cb" not in settings

    def describe_topics(self, topics, request_timeout):
        answers = {topic: Future() for topic in ERRORS}
        for topic, answer in answers.items():
            if ERRORS[topic] is None:
                answer.set_result(None)
            else:
                answer.set_exception(KafkaException(KafkaError(ERRORS[topic])))
        return answers


ERRORS = {
    "there": None,
    "missing": KafkaError.UNKNOWN_TOPIC_OR_PART,
    "denied": KafkaError.TOPIC_AUTHORIZATION_FAILED,
    "away": KafkaError._TIMED_OUT,
}


def test_only_a_topic_that_kafka_does_not_have_is_missing(monkeypatch):
    monkeypatch.setattr(topic_watch, "AdminClient", Admin)
    settings = {"bootstrap.servers": "kafka:9092", "error_cb": print}
    assert topic_watch.find_missing(settings, ERRORS) == ["missing"]
