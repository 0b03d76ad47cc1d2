"""Log filter that drops repeated lines of libraries, up to eighty a second, and marks Faust's lines as Faust's."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

#: A line of the same place in the code is logged again after this long.
_EVERY_S = 30.0
_TALKATIVE = ("aiokafka", "faust", "mode", "txbridge.librdkafka")
#: Faust logs under the module of a class that is derived from its own. txbridge logs as `txbridge.worker` itself.
_FAUST_IN_OUR_NAME = "txbridge.worker."


class _Once(logging.Filter):
    """Lets a line of a talkative library pass once in _EVERY_S. txbridge logs the consequences itself, as events."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(_FAUST_IN_OUR_NAME):
            record.name = "faust"
        if not record.name.startswith(_TALKATIVE):
            return True
        place, now = (record.pathname, record.lineno), time.monotonic()
        if self._logged.get(place, float("-inf")) + _EVERY_S > now:
            return False
        self._logged[place] = now
        return True


def calm_down(handlers: Iterable[logging.Handler]) -> None:
    """Make these handlers drop repeated lines of the libraries, and name Faust's lines after Faust."""
    for handler in handlers:
        handler.addFilter(_Once())
