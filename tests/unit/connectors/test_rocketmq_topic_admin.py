"""Creation of topics that clients name: within limits, and with the reason if Kafka refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from txbridge_rocketmq.admin import TopicAdmin
from txbridge_rocketmq.topics import NoAnswerError

from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.verify import Layout

LAYOUT = Layout(2, {}, 1_065_536, 1_131_072, -1, 3, 2, ())


class Kafka:
    """Its topics, and the requests to create some."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        self.requests: list[NewTopic] = []
        #: The reason for which it refuses topics.
        self.error: KafkaError | None = None

    def look(self, names: Sequence[str]) -> dict[str, int | NoAnswerError]:
        return {name: self.partitions.get(name, 0) for name in names}

    def create_topics(self, topics: Iterable[NewTopic], **_: Any) -> dict[str, Future[None]]:
        answers: dict[str, Future[None]] = {}
        for one in topics:
            self.requests.append(one)
            answer = answers[one.topic] = Future()
            if self.error is None:
                self.partitions[one.topic] = one.num_partitions
                answer.set_result(None)
            else:
                answer.set_exception(KafkaException(self.error))
        return answers

    def poll(self, _: float) -> None: ...


def admin_of(kafka: Kafka, automatic: int = 4) -> TopicAdmin:
    return TopicAdmin(kafka.look, KafkaCluster(lambda: kafka), LAYOUT, automatic)  # type: ignore[arg-type]


def test_topics_are_created_only_by_the_option() -> None:
    kafka = Kafka()
    kafka.partitions["old"] = 8
    assert admin_of(kafka, 0).look_or_create(["old", "new"]) == {"old": 8, "new": 0}
    assert admin_of(kafka).look_or_create(["old", "new", "TBW102"]) == {"old": 8, "new": 4, "TBW102": 0}
    [made] = kafka.requests
    assert (made.topic, made.num_partitions, made.replication_factor) == ("new", 4, 3)
    assert made.config == {"max.message.bytes": "1131072", "min.insync.replicas": "2"}


def test_a_thousand_names_become_topics_and_a_refused_one_counts() -> None:
    kafka = Kafka()
    admin = admin_of(kafka)
    kafka.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert admin.look_or_create(["refused"]) == {"refused": 0}
    kafka.error = None
    found = admin.look_or_create([f"name-{number}" for number in range(1_001)])
    assert sorted(found.values()) == [0] * 2 + [4] * 999
    assert admin.look_or_create(["another", "name-1"]) == {"another": 0, "name-1": 4}


def test_a_kafka_that_is_silent_is_no_missing_topic() -> None:
    kafka = Kafka()
    kafka.error = KafkaError(KafkaError._TIMED_OUT)
    found = admin_of(kafka).look_or_create(["new"])
    assert isinstance(found["new"], NoAnswerError)
    with pytest.raises(NoAnswerError):
        admin_of(kafka).create_topic("new", 4, "ops")
