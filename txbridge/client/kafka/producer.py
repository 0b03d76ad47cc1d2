"""A librdkafka producer that is replaced after a fatal error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Record

from txbridge.client.base import process
from txbridge.client.base.log import report
from txbridge.client.errors import closed
from txbridge.client.kafka.connection import KafkaConnection, create_client
from txbridge.core.names import Headers

DeliveryReport = Callable[[KafkaError | None, Record], None]

#: Partition of a record whose key chooses it.
BY_KEY = -1
#: Usual time (s) to connect and to get a producer id: 2 ms on a healthy machine, some tens with TLS and SASL.
_ID_S = 0.1
#: Time-out (s) of a metadata request for a topic, which takes 60 ms on a healthy machine, a few hundred with TLS and
#: SASL. When no broker answers, records fail after their own time-out, and a longer wait here would only add to that.
_CONNECT_S = 0.5
#: Time-out (s) for the delivery reports of purged records. librdkafka makes them at once.
_LAST_REPORTS_S = 1.0


class Wire:
    """Sends records to Kafka and serves their delivery reports.

    Any thread may call `produce`. One thread at a time calls `serve_reports` and `close`. The delivery reports run
    there.

    After a fatal error (the broker has lost its sequence numbers, for example) librdkafka refuses every further record
    of an idempotent producer. Then Wire replaces the producer, and the undelivered records are reported as failed.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        connection: KafkaConnection,
        factory: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self._connection = connection
        self._create = partial(create_client, factory, config, connection)
        self._producer = self._create()
        process.owns_handle(self)

    def connect(self, topic: str) -> None:
        """Wait a short time for the topic's metadata. If no broker sends them, the first record will fail.

        An idempotent producer needs an id, for which librdkafka asks the broker that it has connected to first. If it
        needs a topic's metadata at that moment, it replaces this connection with another one. Then it has no broker to
        ask, and tries again half a second later. A record that is sent at once waits as long.
        """
        time.sleep(_ID_S)
        with suppress(KafkaException):
            self._producer.list_topics(topic, _CONNECT_S)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        on_delivery: DeliveryReport,
        partition: int = BY_KEY,
        timestamp: int = 0,
    ) -> None:
        """Hand over a record. `timestamp` (ms) 0 means now.

        Raises BufferError when librdkafka's queue is full, KafkaException when the record cannot be sent at all, and
        UsageError after `close`.
        """
        producer = self._producer
        try:
            # By position, because names would add half to the cost of the call. The fifth argument is `callback`, an
            # older name of `on_delivery`. With None for `callback`, `on_delivery` would be ignored.
            producer.produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
        except RuntimeError:
            # confluent-kafka says so after its close: of this Wire, or of a producer that was replaced meanwhile.
            if producer is self._producer:
                raise closed() from None
            self._producer.produce(topic, value, key, partition, on_delivery, None, timestamp, headers)

    def serve_reports(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for delivery reports and errors, and act on them."""
        try:
            self._producer.poll(timeout)
        except KafkaException as failure:
            # confluent-kafka raises a fatal error here, instead of handing it to error_cb.
            if not failure.args[0].fatal():
                raise
            self._connection.on_error(failure.args[0])
            self._replace_producer()

    def close(self) -> None:
        """Report undelivered records as failed, and end librdkafka's threads."""
        self._end_producer(self._producer)

    def _replace_producer(self) -> None:
        dead, self._producer = self._producer, self._create()
        report(logging.ERROR, "kafka_producer_replaced", reason="a fatal error of librdkafka, see kafka_error")
        self._end_producer(dead)

    @staticmethod
    def _end_producer(producer: Any) -> None:
        # Without the purge, flush and close would wait for message.timeout.ms.
        producer.purge()
        producer.flush(_LAST_REPORTS_S)
        producer.close()
