"""The client's log lines: stable event names and fields, through the standard library's logging.

Nothing is configured here: that is the business of the application that uses this library.
"""

from __future__ import annotations

import logging

_logger = logging.getLogger("txbridge.client")


def report(level: int, event: str, *, exception: BaseException | None = None, **fields: object) -> None:
    """Log an event; its name and fields are also attributes of the LogRecord (`event`, `fields`)."""
    if _logger.isEnabledFor(level):
        text = "".join(f" {name}={value}" for name, value in fields.items())
        _logger.log(level, "%s%s", event, text, exc_info=exception, extra={"event": event, "fields": fields})
