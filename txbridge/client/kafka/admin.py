"""Admin client for questions that may stay without an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txbridge.client.base import process
from txbridge.kafka import config as kafka_config
from txbridge.kafka.log import librdkafka_logger


def quiet_admin(settings: Mapping[str, Any], factory: Callable[[dict[str, Any]], Any]) -> Any:
    """Return an admin client. It reports no connection errors, as the other clients of the producer do."""
    config = {"logger": librdkafka_logger(), **kafka_config.admin_config(settings)}
    config.pop("error_cb", None)
    return process.owns_handle(kafka_config.create(factory, config))
