"""The place in a log from which records about a half message can be found, by its birth."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.operations.connection import Connection

#: A search by time starts this long (ms) earlier, because the clocks of brokers differ.
CLOCK_SKEW_MS = 60_000


def admin_client(connection: Connection) -> AdminClient:
    return kafka_config.create(AdminClient, kafka_config.admin_config(connection.kafka))


def start_since(admin: AdminClient, topic: str, partition: int, born: int) -> int | None:
    """The first offset that can hold a record about a message of this birth (ms); None if none has come since then.

    Raises KafkaException.
    """
    where = TopicPartition(topic, partition)
    spec = {where: OffsetSpec.for_timestamp(max(born - CLOCK_SKEW_MS, 0))}
    offset: int = admin.list_offsets(spec, request_timeout=REQUEST_TIMEOUT_S)[where].result().offset
    # Kafka answers -1 when nothing came since then.
    return offset if offset >= 0 else None
