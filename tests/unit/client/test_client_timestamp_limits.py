"""Timestamps that real topics take: how often Kafka is asked."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from txbridge import Message
from txbridge.client.kafka.timestamp_limits import TimestampLimits


class Admin:
    """An admin client whose topics have no configuration of their own."""

    def __init__(self):
        self.asked = []

    def describe_configs(self, resources, **_):
        self.asked.append([resource.name for resource in resources])
        answers = {resource: Future() for resource in resources}
        for answer in answers.values():
            answer.set_result({})
        return answers


@pytest.fixture
def admin():
    return Admin()


@pytest.fixture
def limits(admin):
    return TimestampLimits({"bootstrap.servers": "127.0.0.1:1"}, lambda _: admin)


def test_sends_that_waited_for_a_thread_use_the_answer_of_the_first(admin, limits):
    looks = [limits.look_up(Message("orders", b"", timestamp=1), 60.0) for _ in range(100)]
    for look in looks:
        look()
    assert admin.asked == [["orders"]]
    assert limits.look_up(Message("orders", b"", timestamp=1), 60.0) is None


def test_a_message_without_a_timestamp_asks_nothing(limits):
    assert limits.look_up(Message("orders", b""), 60.0) is None
