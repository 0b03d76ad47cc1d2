"""A librdkafka producer that outlives its fatal errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Record

from txbridge.client.flow import process
from txbridge.client.kafka.callbacks import with_guards
from txbridge.client.kafka.connection import Connection
from txbridge.client.log import report
from txbridge.core.names import Headers
from txbridge.kafka import config as kafka_config
from txbridge.kafka.log import librdkafka_logger

DeliveryReport = Callable[[KafkaError | None, Record], None]

#: Usually long enough (s) to connect and to be given an id: 2 ms on a healthy machine, some tens with TLS and SASL.
_ID_S = 0.1
#: And to be told about a topic: 60 ms on a healthy machine, a few hundred with TLS and SASL. When no broker answers,
#: records are told so after their own time-out, and nobody should wait here as well.
_CONNECT_S = 0.5
#: How long the delivery reports of purged records may take: they are made on the spot.
_LAST_REPORTS_S = 1.0


class Wire:
    """Records to Kafka and their delivery reports.

    `produce` may be called from any thread; `serve` and `close` from one, where the delivery reports then run.

    An idempotent producer is dead after a fatal error (the broker has lost its sequence numbers, say): librdkafka
    refuses every further record. Then it is replaced; what it had not delivered is reported as failed.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        connection: Connection,
        factory: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self._config = {"logger": librdkafka_logger(), **with_guards(config), "error_cb": self._on_error}
        self._connection = connection
        self._factory = factory
        self._dead = False
        self._producer = kafka_config.create(factory, self._config)
        process.owns_handle(self)

    def connect(self, topic: str) -> None:
        """Wait until a broker tells about the topic, but not for long: when none does, sending will say so.

        An idempotent producer needs an id, for which librdkafka asks the broker that it has connected to first. If it
        wants to know about a topic at that moment, it exchanges this connection for another one, has nobody to ask, and
        tries again half a second later: who sends at once waits as long.
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
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        """Hand over a record; `partition` -1 is by the key, `timestamp` (ms) 0 is now.

        Raises BufferError when librdkafka's queue is full, KafkaException when the record cannot be sent at all.
        """
        # By position (`callback` is an older name of `on_delivery`): naming them takes as long as half of the rest.
        # With None for `callback`, `on_delivery` would be ignored.
        self._producer.produce(topic, value, key, partition, on_delivery, None, timestamp, headers)

    def serve(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for delivery reports and errors, and act on them."""
        self._producer.poll(timeout)
        if self._dead:
            self._replace()

    def close(self) -> None:
        """Report what is not delivered yet as failed, and end librdkafka's threads."""
        self._end(self._producer)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            # librdkafka must not be ended inside a callback of its own.
            self._dead = True
        self._connection.on_error(error)

    def _replace(self) -> None:
        dead, self._producer = self._producer, kafka_config.create(self._factory, self._config)
        self._dead = False
        report(logging.ERROR, "kafka_producer_replaced", reason="a fatal error of librdkafka, see kafka_error")
        self._end(dead)

    @staticmethod
    def _end(producer: Any) -> None:
        # Without the purge, flush and close would wait for message.timeout.ms.
        producer.purge()
        producer.flush(_LAST_REPORTS_S)
        producer.close()
