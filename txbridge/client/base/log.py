"""Log lines of the client: stable event names and fields, through the standard library's logging.

Nothing is configured here. The application that uses this library does that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass

from txbridge.client.base import process
from txbridge.masking import masked_values

#: Seconds between two lines with a full trace for exceptions of the same kind, and between two about the same thing.
#: When a database is down, every check and every local transaction raises. Thousands of traces a second would fill the
#: disk before anybody looks.
_FULL_EVERY_S = 60.0
#: Most kinds that are remembered; the oldest is forgotten first. A kind is an event with what it is about, or with the
#: class of the exception and a place in the code.
_MAX_KINDS = 100

_logger = logging.getLogger("txbridge.client")


@dataclass(slots=True)
class _Kind:
    again_at: float
    repeated: int = 0


_kinds: dict[tuple[Hashable, ...], _Kind] = {}
_lock = process.lock()


def report(
    level: int, event: str, *, exception: BaseException | None = None, once_for: Hashable = None, **fields: object
) -> None:
    """Log an event. Its name and fields are also attributes of the LogRecord (`event`, `fields`).

    An event that names what it is about (`once_for`) is logged once a minute for that.

    The first exception of a kind in a minute is logged with its trace. Later ones are logged without a trace at level
    DEBUG. The field `repeated` of the next line with a trace counts them.
    """
    if not _logger.isEnabledFor(level):
        return
    if once_for is not None and _repeated((event, once_for)) is None:
        return
    if exception is not None:
        repeated = _repeated((event, *_kind_of(exception)))
        if repeated is None:
            if not _logger.isEnabledFor(logging.DEBUG):
                return
            level, exception = logging.DEBUG, None
        elif repeated:
            fields["repeated"] = repeated
    fields = masked_values(fields)
    text = "".join(f" {name}={value}" for name, value in fields.items())
    _logger.log(level, "%s%s", event, text, exc_info=exception, extra={"event": event, "fields": fields})


def forget() -> None:
    """Forget all kinds of exceptions, as in a new process."""
    with _lock:
        _kinds.clear()


def _kind_of(exception: BaseException) -> tuple[type, str, int]:
    """Return its class and the place in the code that has raised it."""
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file, line = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return type(exception), file, line


def _repeated(key: tuple[Hashable, ...]) -> int | None:
    """Return the number of events of this kind since the last full line; None if this one gets none either."""
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
