"""The loggers of Kafka's clients."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_quiet = ContextVar("is_quiet", default=False)


def librdkafka_logger(*, is_shown: bool = False) -> logging.Logger:
    """The logger of librdkafka, off by default: txbridge reports the lines that matter as events of its own."""
    logger = logging.getLogger("txbridge.librdkafka.shown" if is_shown else "txbridge.librdkafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.DEBUG if is_shown else logging.CRITICAL)
        if is_shown and not logger.hasHandlers():
            # librdkafka itself would print the secrets in its lines.
            logger.addHandler(logging.StreamHandler())
    return logger


@contextmanager
def without_aiokafka() -> Iterator[None]:
    """Suppress aiokafka's lines about the requests of this block, which the caller reports. Faust's lines stay.

    It also applies to tasks that are started within the block, but to no other thread.
    """
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.cluster"):
        # The same function is added only once. "aiokafka" is the logger of aiokafka.client.
        logging.getLogger(name).addFilter(_is_wanted)
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def _is_wanted(_record: logging.LogRecord) -> bool:
    return not _is_quiet.get()
