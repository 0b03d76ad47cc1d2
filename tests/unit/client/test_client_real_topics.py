"""Rules of real topics: how often Kafka is asked, and which messages a topic would refuse."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaException

from txbridge import Message
from txbridge.client.kafka.topic_watch import RealTopics
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
