"""Rules of real topics: how often Kafka is asked, and which messages a topic would refuse."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge import Message
from txbridge.client.kafka.real_topics import RealTopics


class Entry:
    def __init__(self, value):
        self.value = value


class Admin:
    """An admin client whose topics have the given configurations, or errors."""

    def __init__(self):
        self.asked = []
        self.topics = {}

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
    return RealTopics({"bootstrap.servers": "127.0.0.1:1"}, lambda _: admin)


def test_sends_that_waited_for_a_thread_use_the_answer_of_the_first(admin, limits):
    looks = [limits.look_up(Message("orders", b"", timestamp=1), 60.0) for _ in range(100)]
    for look in looks:
        look()
    assert admin.asked == [["orders"]]
    assert limits.look_up(Message("orders", b"", timestamp=1), 60.0) is None


def test_a_message_without_a_timestamp_asks_nothing(limits):
    assert limits.look_up(Message("orders", b""), 60.0) is None


def test_a_missing_topic_takes_no_message_and_a_hidden_one_is_named_once(admin, limits, caplog):
    admin.topics = {
        "missing": KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)),
        "hidden": KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
    }
    limits.look_up_all(["missing", "hidden", "orders"])
    assert [limits.is_closed(topic) for topic in ("missing", "hidden", "orders", "not asked")] == [
        *(True, False, False, False)
    ]
    limits.look_up_all(["missing", "hidden", "orders"])
    assert admin.asked == [["hidden", "missing", "orders"]]
    [line] = caplog.messages
    assert line.startswith("real_topic_hidden topic=hidden hint=missing right DESCRIBE_CONFIGS on topic hidden: ")


def test_a_topic_may_refuse_one_message_and_take_another(admin, limits):
    admin.topics = {"small": {"max.message.bytes": "1000"}, "compacted": {"cleanup.policy": "compact"}}
    limits.look_up_all(admin.topics)
    assert not any(map(limits.is_closed, admin.topics))
    assert limits.would_refuse(Message("small", b"x" * 950))
    assert not limits.would_refuse(Message("small", b"x" * 800))
    assert limits.would_refuse(Message("compacted", b"x"))
    assert not limits.would_refuse(Message("compacted", b"x", b"key"))
    assert not limits.would_refuse(Message("not asked", b"x" * 950))
