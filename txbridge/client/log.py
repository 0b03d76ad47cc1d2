"""The client's log lines: stable event names and fields, through the standard library's logging.

Nothing is configured here: that is the business of the application that uses this library.
"""

from __future__ import annotations

import logging
import time

from txbridge.client.flow import process

#: An exception of the same kind is logged in full so often (s). With a database that is down every check and every
#: local transaction raises, and a trace for each of thousands a second would fill the disk before anybody looks.
_FULL_EVERY_S = 60.0
#: Kinds that are remembered, the oldest forgotten first: a kind is a place in the application's code.
_MAX_KINDS = 100

_logger = logging.getLogger("txbridge.client")


class _Kind:
    __slots__ = ("again_at", "repeated")

    def __init__(self, again_at: float) -> None:
        self.again_at = again_at
        self.repeated = 0


_kinds: dict[tuple[str, type, str, int], _Kind] = {}
_lock = process.lock()


def report(level: int, event: str, *, exception: BaseException | None = None, **fields: object) -> None:
    """Log an event; its name and fields are also attributes of the LogRecord (`event`, `fields`).

    With an exception: the first of its kind in a minute with its trace. Those in between are counted, which the field
    `repeated` of the next one tells, and logged without their trace at level DEBUG.
    """
    if not _logger.isEnabledFor(level):
        return
    if exception is not None:
        repeated = _repeated(event, exception)
        if repeated is None:
            if not _logger.isEnabledFor(logging.DEBUG):
                return
            level, exception = logging.DEBUG, None
        elif repeated:
            fields["repeated"] = repeated
    text = "".join(f" {name}={value}" for name, value in fields.items())
    _logger.log(level, "%s%s", event, text, exc_info=exception, extra={"event": event, "fields": fields})


def forget() -> None:
    """Take every kind of exception for new, as in a new process."""
    with _lock:
        _kinds.clear()


def _repeated(event: str, exception: BaseException) -> int | None:
    """How many of its kind were not logged before this one; None if it is not to be logged either."""
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file, line = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    key = (event, type(exception), file, line)
    now = time.monotonic()
    with _lock:
        kind = _kinds.get(key)
        if kind is not None and now < kind.again_at:
            kind.repeated += 1
            return None
        if kind is None and len(_kinds) >= _MAX_KINDS:
            del _kinds[next(iter(_kinds))]
        _kinds[key] = _Kind(now + _FULL_EVERY_S)
        return 0 if kind is None else kind.repeated
