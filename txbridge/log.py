"""Structured logs: stable event names with fields, as one JSON object a line, or as text for a person on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import structlog

from txbridge.masking import masked, masked_values
from txbridge.text import one_line, printable

#: Fields with a trace.
_OF_SEVERAL_LINES = {"exception", "stack"}


def get_logger(name: str) -> Any:
    return structlog.stdlib.get_logger(name)


def _without_controls(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape what other programs say of themselves, such as a CLIENT_ID, before it reaches a terminal. JSON does so."""
    return {
        name: (printable if name in _OF_SEVERAL_LINES else one_line)(value) if isinstance(value, str) else value
        for name, value in event.items()
    }


def _for_people() -> Any:
    """Return the renderer for a console: colours only on a terminal and without NO_COLOR, traces as plain text."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)


def configure(log_format: str, level: str) -> None:
    """Set up the logs of a process of txbridge. Where txbridge is a library, its application does that.

    Args:
        log_format: "json", "console", or "auto": console when stderr is a terminal.
        level: a name of the standard library's levels.

    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    as_json = structlog.processors.JSONRenderer(default=lambda one: masked(repr(one)))
    rendering: list[Any] = [_without_controls, _for_people()] if console else [as_json]
    rendering.insert(0, lambda _logger, _method, event: masked_values(event))
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These libraries log every request and rebalance. txbridge itself logs the events that matter.
    for name in ("aiokafka", "faust", "mode", "kafka", "txbridge.worker.app"):
        logging.getLogger(name).setLevel(logging.WARNING)
