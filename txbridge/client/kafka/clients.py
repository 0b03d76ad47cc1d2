"""The Kafka clients of a producer, with their logger and the user's callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from txbridge.client.base import process
from txbridge.client.base.contained import contained
from txbridge.kafka import config as kafka_config

if TYPE_CHECKING:
    from txbridge.client.kafka.connection import KafkaConnection

_Client = TypeVar("_Client")

#: Callbacks of the user's that are contained. KafkaConnection contains `error_cb`. `oauth_cb` needs nothing: librdkafka
#: takes its exception as the failure to get a token.
_CALLBACKS = ("stats_cb", "throttle_cb")


def create_client(
    factory: Callable[[dict[str, Any]], _Client], config: Mapping[str, Any], connection: KafkaConnection | None = None
) -> _Client:
    """Make a client, whose errors go to the connection. Without one it only asks questions that may stay unanswered.

    Raises UsageError for settings that librdkafka refuses.
    """
    callbacks: dict[str, Any] = {name: contained(config[name]) for name in _CALLBACKS if config.get(name) is not None}
    settings = {**config, **callbacks}
    settings.pop("error_cb", None)
    if (own := settings.pop("logger", None)) is not None:
        # confluent-kafka calls only `log`.
        settings["logger"] = SimpleNamespace(log=contained(own.log))
    if connection is not None:
        settings["error_cb"] = connection.on_error
    return kafka_config.create(factory, settings)


def create_admin(
    settings: Mapping[str, Any], factory: Callable[[dict[str, Any]], Any], connection: KafkaConnection | None = None
) -> Any:
    """Make an admin client, as `create_client` does."""
    return process.owns_handle(create_client(factory, kafka_config.admin_config(settings), connection))
