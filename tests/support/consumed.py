"""Records in the form in which consumers return them, without a Kafka."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME


class Record:
    """A record of confluent-kafka's consumer."""

    def __init__(self, headers=None, topic="orders", partition=0, offset=7, timestamp=1_700_000_000_000, failure=None):
        self.headers = lambda: headers
        self.topic = lambda: topic
        self.partition = lambda: partition
        self.offset = lambda: offset
        self.timestamp = lambda: (TIMESTAMP_CREATE_TIME, timestamp)
        self.error = lambda: failure


#: The part of a record of aiokafka's and kafka-python's consumers that the tests need.
class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]
