"""aiokafka's client, for requests that librdkafka does not have, and for requests to one particular broker.

librdkafka chooses the broker of a request itself: any one, or the one that it takes for the leader. aiokafka, which is
installed for Faust, can send a request to a given broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient

from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.config import BOOTSTRAP_SERVERS


def aiokafka_client(kafka: Mapping[str, Any], purpose: str, request_timeout_s: float) -> AIOKafkaClient:
    """Create a client that has not connected yet; its client.id is txbridge-PURPOSE. Call it within an event loop.

    `kafka` are librdkafka's properties. Raises UsageError for those that aiokafka cannot use.
    """
    return AIOKafkaClient(
        bootstrap_servers=kafka[BOOTSTRAP_SERVERS],
        client_id=f"txbridge-{purpose}",
        request_timeout_ms=round(request_timeout_s * 1000),
        **aiokafka_auth(kafka),
    )
