"""The logger that librdkafka's own lines go to."""

from __future__ import annotations

import logging


def librdkafka_logger() -> logging.Logger:
    """Off by default: what matters of librdkafka's lines, txbridge reports itself as events."""
    logger = logging.getLogger("txbridge.librdkafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
    return logger
