"""Guards for the user's callbacks in librdkafka's settings: exceptions are logged, and fail no serving thread."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from txbridge.client.base.log import report

#: Callbacks that run while delivery reports are served, perhaps in a thread of the application. Connection guards
#: `error_cb`. `oauth_cb` is not guarded, because librdkafka takes its exception as the failure to get a token.
_SERVED = ("stats_cb", "throttle_cb")


def guarded(callback: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that calls `callback` and logs its exceptions. An exception of a signal handler is raised."""

    def call(*given: Any) -> None:
        try:
            callback(*given)
        except Exception as error:
            if _is_of_a_signal(error):
                raise
            report(logging.ERROR, "kafka_callback_raised", exception=error)

    return call


def with_guards(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with every callback and logger of the user guarded."""
    found: dict[str, Any] = {name: guarded(config[name]) for name in _SERVED if config.get(name) is not None}
    if config.get("logger") is not None:
        found["logger"] = _GuardedLogger(config["logger"])
    return {**config, **found}


class _GuardedLogger:
    """The user's logger for lines of librdkafka, which calls only `log`."""

    def __init__(self, logger: Any) -> None:
        self.log = guarded(logger.log)


def _is_of_a_signal(error: Exception) -> bool:
    """Whether a signal handler is in the trace. Signal handlers run only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))]
    codes = {getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None) for one in handlers}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
