"""Views of the topics for a test: messages as consumers see them, and the state of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Message

from txbridge.core.states import TransactionState
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.operations import Connection
from txbridge.operations.reading import old_outcome, read_view
from txbridge.testing.fates import HasCoordinates


def state_of(connection: Connection, transaction: HasCoordinates) -> TransactionState:
    """The current state of a transaction, from the topics alone; pending when no worker has seen it yet.

    Raises AssertionError when there is no half message, and the errors of `txbridge.operations.list_pending`.
    """
    partition, offset = transaction.half_partition, transaction.half_offset
    view = read_view(connection, partition)
    message = view.find_open(offset)
    if message is not None:
        return message.state
    outcome = view.outcome_of(offset) or old_outcome(connection, view, offset)
    assert outcome is not None, f"there is no half message at {partition}:{offset} in {connection.names.half}"
    return outcome.state


def read_committed(kafka: Mapping[str, Any], topic: str, partitions: int) -> list[Message]:
    """All messages of a topic that a consumer with isolation.level=read_committed sees, partition by partition.

    Messages that were written before this call are seen: it waits for Kafka transactions that are being ended. Raises
    HangingTransactionError when one stays open for 30 s, KafkaException.
    """
    found: list[Message] = []
    for partition in range(partitions):
        with closing(PartitionReader(kafka, topic, partition, committed=False)) as raw:
            start, end = raw.watermarks()
        with closing(PartitionReader(kafka, topic, partition, committed=True)) as reader:
            reader.start(start)
            found += reader.read_below(end, lambda: False)
    return found
