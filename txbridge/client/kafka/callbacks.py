"""The user's callbacks among librdkafka's settings: what they raise is told, and fails nobody who serves them."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from txbridge.client.log import report

#: Called while delivery reports are served, which may be in a thread of the application. `error_cb` is Connection's.
#: `oauth_cb` is not here: what it raises, librdkafka takes for a token that could not be had.
_SERVED = ("stats_cb", "throttle_cb")


def guarded(callback: Callable[..., Any]) -> Callable[..., None]:
    """Calls it. An exception of its own is told; what the handler of a signal raises meanwhile gets out."""

    def call(*given: Any) -> None:
        try:
            callback(*given)
        except Exception as error:
            if _is_of_a_signal(error):
                raise
            report(logging.ERROR, "kafka_callback_raised", exception=error)

    return call


def with_guards(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with every callback and logger of the user's guarded."""
    found: dict[str, Any] = {name: guarded(config[name]) for name in _SERVED if config.get(name) is not None}
    if config.get("logger") is not None:
        found["logger"] = _GuardedLogger(config["logger"])
    return {**config, **found}


class _GuardedLogger:
    """What librdkafka's lines are given to: it calls nothing but `log`."""

    def __init__(self, logger: Any) -> None:
        self.log = guarded(logger.log)


def _is_of_a_signal(error: Exception) -> bool:
    """Whether the handler of a signal, which runs in the main thread alone, stands in the trace."""
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
