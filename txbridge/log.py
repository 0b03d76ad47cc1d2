"""Structured logs: stable event names with fields, one JSON object a line unless a person is looking."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """A logger whose events keep to the standard library's handlers and levels."""
    return structlog.stdlib.get_logger(name)


def _for_people() -> Any:
    """Colours only on a terminal of somebody who wants them; a trace is plain text, as in the other format."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)


def configure(log_format: str, level: str) -> None:
    """Set up the logs of one of our own processes; a library leaves that to its application.

    Args:
        log_format: "json", "console", or "auto": console when stderr is a terminal.
        level: a name of the standard library's levels.

    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = _for_people() if console else structlog.processors.JSONRenderer()
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        ),
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The libraries below us tell about every request and rebalance; what matters of it we say ourselves.
    for name in ("aiokafka", "faust", "mode", "kafka", "txbridge.worker.app"):
        logging.getLogger(name).setLevel(logging.WARNING)
