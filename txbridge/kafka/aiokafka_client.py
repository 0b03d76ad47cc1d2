"""aiokafka's client: for requests that librdkafka does not know, and for those that one broker is to answer.

librdkafka asks whichever broker it likes, and the one that it takes for the leader. aiokafka, which is there for Faust,
can send a request to a broker that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient

from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.config import BOOTSTRAP_SERVERS


def aiokafka_client(kafka: Mapping[str, Any], purpose: str, request_timeout_s: float) -> AIOKafkaClient:
    """A client that has not connected yet; brokers see it as txbridge-PURPOSE. Within an event loop.

    `kafka` are librdkafka's properties. Raises UsageError for those that aiokafka cannot use.
    """
    return AIOKafkaClient(
        bootstrap_servers=kafka[BOOTSTRAP_SERVERS],
        client_id=f"txbridge-{purpose}",
        request_timeout_ms=round(request_timeout_s * 1000),
        **aiokafka_auth(kafka),
    )
