"""The log of tests/support/audit_cases.py in a real Kafka."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import txbridge_audit
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.audit_cases import CASES, TAIL
from tests.support.audit_terms import ABSENT, COMPACTED, FORWARDED, ORDERS, PARTITIONS, Log, Record
from tests.support.harness import eventually, quiet
from txbridge.core.names import Names

#: Number of violations of each kind that audit_cases.py plants, counted there by hand.
VIOLATIONS = {
    "LOST": 13,
    "PARTIAL": 10,
    "DUPLICATED": 4,
    "LEAKED": 12,
    "PHANTOM": 6,
    "WRONG_WINNER": 3,
    "ALTERED": 17,
    "MISPLACED": 3,
    "BEFORE_DECISION": 3,
    "OVERTAKEN": 2,
    "OUT_OF_ORDER": 2,
    "STUCK": 1,
    "EARLY": 7,
    "OVERDUE": 3,
    "EXPIRED": 0,
    "CHECKED_AFTER_DECISION": 2,
    "PROGRESS_AHEAD": 3,
}
#: Programs find the audit in the checkout.
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(Path(txbridge_audit.__file__).parent.parent), str(Path.cwd())])
}


class KafkaLog(Log):
    """The log in Kafka, under a namespace and real topics of its own."""

    def __init__(
        self, servers: str, partitions: int = PARTITIONS, replicas: int = 1, namespace: str | None = None
    ) -> None:
        super().__init__(Names(namespace or f"audit{secrets.token_hex(3)}"))
        self.servers = servers
        self.recently = time.time_ns() // 1_000_000 - 60_000
        self.admin = AdminClient(quiet(servers))
        names = self.names
        stamped = {"message.timestamp.type": "LogAppendTime"}
        topics = [NewTopic(topic, partitions, replicas, config=stamped) for topic in (names.half, names.end)]
        # Some outcomes are hours old.
        topics.append(NewTopic(names.op, partitions, replicas))
        topics.append(NewTopic(names.offset, partitions, replicas, config={"cleanup.policy": "compact"}))
        topics.append(NewTopic(names.check("billing"), 1, replicas, config=stamped))
        topics.append(NewTopic(names.discard, 1, replicas, config=stamped))
        topics.append(NewTopic(self.real(ORDERS), 2, replicas))
        topics.append(NewTopic(self.real(FORWARDED), 1, replicas))
        topics.append(NewTopic(self.real(COMPACTED), 1, replicas, config={"cleanup.policy": "compact"}))
        self.create(*topics)
        self._plain = Producer({**quiet(servers), "enable.idempotence": True, "linger.ms": 0})
        self._writer = self.transactional()

    def create(self, *topics: NewTopic) -> None:
        for future in self.admin.create_topics(list(topics)).values():
            future.result()
        # The broker that answers may learn of the topics a moment later.
        wanted = {topic.topic for topic in topics}
        eventually(lambda: wanted <= self.admin.list_topics(timeout=120).topics.keys())

    def delete(self, *topics: str) -> None:
        for future in self.admin.delete_topics(list(topics)).values():
            future.result()
        eventually(lambda: not set(topics) & self.admin.list_topics(timeout=120).topics.keys())

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove the beginning of a partition, as retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result()

    def transactional(self) -> Producer:
        name = f"{self.names.namespace}-{secrets.token_hex(3)}"
        # A test may keep a transaction open while Spark reads. On a busy machine that takes over a minute, after which
        # Kafka's default would abort it. This is the longest that a broker allows by default.
        timeout = {"transaction.timeout.ms": 900_000}
        producer = Producer({**quiet(self.servers), "transactional.id": name, "linger.ms": 0, **timeout})
        producer.init_transactions()
        return producer

    def real(self, topic: str) -> str:
        return f"{self.names.namespace}-{topic}" if topic in {ORDERS, COMPACTED, ABSENT, FORWARDED} else topic

    def write(self, record: Record) -> None:
        self._send(self._plain, record)
        self._plain.flush()

    def transaction(self, *records: Record) -> None:
        self._writer.begin_transaction()
        for record in records:
            self._send(self._writer, record)
        self._writer.commit_transaction()

    def aborted(self, *records: Record) -> None:
        self._writer.begin_transaction()
        for record in records:
            self._send(self._writer, record)
        self._writer.flush()
        self._writer.abort_transaction()

    def left_open(self, *records: Record) -> Producer:
        """A Kafka transaction of another client that stays open."""
        producer = self.transactional()
        producer.begin_transaction()
        for record in records:
            self._send(producer, record)
        producer.flush()
        return producer

    @staticmethod
    def _send(producer: Producer, record: Record) -> None:
        def written(_: object, message: Message) -> None:
            offset = message.offset()
            assert offset is not None
            record.at.append(offset)
            record.stamped.append(message.timestamp()[1])

        producer.produce(
            record.topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=record.headers,
            # 0 stands for the current time.
            timestamp=record.dated or 0,
            on_delivery=written,
        )


def transactions() -> list[str]:
    """The fate of every planted transaction."""
    return [fate for case in (*CASES.values(), *TAIL.values()) for fate in case.fates]


def values_in(servers: str, topic: str) -> list[bytes]:
    """The committed records of a topic with one partition."""
    settings = {**quiet(servers), "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value() or b"")
    assert message is not None
    assert message.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return found
