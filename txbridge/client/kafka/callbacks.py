"""Guards for the user's callbacks in librdkafka's settings: exceptions are logged, and fail no serving thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from txbridge.client.base.log import report

#: Callbacks that run while delivery reports are served. KafkaConnection guards `error_cb`. `oauth_cb` needs no guard:
#: librdkafka takes its exception as the failure to get a token.
_SERVED = ("stats_cb", "throttle_cb")


def guarded(callback: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that calls `callback` and logs its exceptions."""

    def call(*given: Any) -> None:
        try:
            callback(*given)
        except Exception as error:  # noqa: BLE001  whatever it is, reports that come after it must be served
            report(logging.ERROR, "kafka_callback_raised", exception=error)

    return call


def with_guards(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with every callback and logger of the user guarded."""
    found: dict[str, Any] = {name: guarded(config[name]) for name in _SERVED if config.get(name) is not None}
    if config.get("logger") is not None:
        # confluent-kafka calls only `log`.
        found["logger"] = SimpleNamespace(log=guarded(config["logger"].log))
    return {**config, **found}
