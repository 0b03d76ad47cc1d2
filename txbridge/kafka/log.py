"""The loggers that lines of Kafka's clients go to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_quiet = ContextVar("is_quiet", default=False)


def librdkafka_logger() -> logging.Logger:
    """Off by default: what matters of librdkafka's lines, txbridge reports itself as events."""
    logger = logging.getLogger("txbridge.librdkafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
    return logger


@contextmanager
def without_aiokafka() -> Iterator[None]:
    """Without lines of aiokafka about what this block asks: who asks reports it. Those of Faust's connection stay.

    It holds for tasks that are begun within, and for no other thread.
    """
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.cluster"):
        # One and the same function is added once. "aiokafka" is what aiokafka.client logs to.
        logging.getLogger(name).addFilter(_is_wanted)
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def _is_wanted(_record: logging.LogRecord) -> bool:
    return not _is_quiet.get()
