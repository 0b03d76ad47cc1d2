"""Topics that a client watches: rules of real ones, how often Kafka is asked, and changes that it notices."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge import Message
from txbridge.client.kafka import topic_watch
from txbridge.client.kafka.topic_watch import RealTopics, TopicWatch
from txbridge.core.names import Names
from txbridge.kafka.admin import KafkaCluster


class Entry:
    def __init__(self, value):
        self.value = value


class Admin:
    """An admin client whose topics have the given configurations, or errors."""

    def __init__(self):
        self.asked = []
        self.topics = {}
        self.described = Future()
        self.described.set_result(None)

    def poll(self, _seconds): ...

    def describe_topics(self, topics, **_):
        return dict.fromkeys(topics.topic_names, self.described)

    def describe_configs(self, resources, **_):
        self.asked.append([resource.name for resource in resources])
        answers = {resource: Future() for resource in resources}
        for resource, answer in answers.items():
            found = self.topics.get(resource.name, {})
            if isinstance(found, KafkaException):
                answer.set_exception(found)
            else:
                answer.set_result({name: Entry(value) for name, value in found.items()})
        return answers


@pytest.fixture
def admin():
    return Admin()


@pytest.fixture
def limits(admin):
    return RealTopics(KafkaCluster(lambda: admin))


def test_sends_that_waited_for_a_thread_use_the_answer_of_the_first(admin, limits):
    looks = [limits.look_up(Message("orders", b"", timestamp=1), 60.0) for _ in range(100)]
    for look in looks:
        look()
    assert admin.asked == [["orders"]]
    assert limits.look_up(Message("orders", b"", timestamp=1), 60.0) is None


def test_a_message_without_a_timestamp_asks_nothing(limits):
    assert limits.look_up(Message("orders", b""), 60.0) is None


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


class QuickAdmin:
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
    monkeypatch.setattr(topic_watch, "AdminClient", QuickAdmin)
    settings = {"bootstrap.servers": "kafka:9092", "error_cb": print}
    assert topic_watch.find_missing(settings, ERRORS) == ["missing"]
