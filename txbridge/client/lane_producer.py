"""The client of a relay, which chooses the half partition of each transaction and the order of their decisions."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from txbridge.client.kafka.real_topics import RealTopics
from txbridge.client.message import Message, MessageLimits
from txbridge.client.producer import TransactionProducer
from txbridge.client.result import TransactionSendResult


class LaneProducer(TransactionProducer):
    """A TransactionProducer whose caller names the half partition. Thread-safe.

    The worker delivers what is committed in one half partition in the order of the decisions. So a caller that has one
    transaction of a half partition on its way at a time, and waits for its END, has its messages delivered in order.
    """

    @property
    def half_partitions(self) -> int:
        """Number of partitions of HALF. Starts the producer, as `limits` does."""
        return self._life.ensure_started().half_partitions

    @property
    def limits(self) -> MessageLimits:
        """What the topics can take."""
        return self._life.ensure_started().sends.limits

    @property
    def real_topics(self) -> RealTopics:
        """What is known of the real topics."""
        return self._life.ensure_started().sends.real_topics

    def send_in_lane(self, message: Message, half_partition: int, arg: Any) -> TransactionSendResult:
        """Send a checked message, or several as one, by this half partition. Raises as the method for one message."""
        return self._send_one(message, arg, self._listener.execute_local_transaction, half_partition)

    def send_commit_again(self, transaction_id: str, half_partition: int, half_offset: int) -> Future[None]:
        """See SendPath.send_commit_again."""
        return self._life.ensure_started().sends.send_commit_again(transaction_id, half_partition, half_offset)
