"""The open messages of the whole namespace, as the status page lists them: read from the topics, and kept for a while.

They are read only when a person looks at them, in a thread of its own. No owner of a partition is asked or waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Any

from confluent_kafka import KafkaException

from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError
from txbridge.log import get_logger
from txbridge.operations import Connection, OpenMessage
from txbridge.operations.causes import next_step_of, trouble_of
from txbridge.operations.overview import Overview, read_overview
from txbridge.text import plain

#: Most messages that are shown, of one cause and of all causes together.
MOST_SHOWN = 100
#: Most causes that are shown; the others are counted.
_MOST_CAUSES = 50
#: Least pause between two readings: in seconds, and as a multiple of the last one's duration. So reading takes at most
#: a tenth of the time, however many people look.
_PAUSE_S, _PAUSE_TIMES = 10.0, 9.0
#: Most characters of a cause, and of an error.
_LONGEST = 500

_log = get_logger("txbridge.worker")


class OpenBoard:
    """Thread-safe. `read` reads the whole namespace and may take long; it is called by one thread at a time."""

    def __init__(
        self, read: Callable[[Callable[[int, int], None]], Overview], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._reading = False
        self._progress = (0, 0)
        self._overview: Overview | None = None
        self._error: str | None = None
        self._seconds = 0.0
        #: Monotonic time (s) at which the last reading ended; None before that.
        self._ended: float | None = None

    @classmethod
    def of(cls, settings: WorkerSettings) -> OpenBoard:
        """The board of a worker's namespace."""
        return cls(lambda progress: read_overview(Connection.open(settings), MOST_SHOWN, progress=progress))

    def snapshot(self, cause: str) -> dict[str, Any]:
        """The last reading as JSON values, with the oldest messages of one cause or of all. Starts a new one if due."""
        with self._lock:
            if self._is_due():
                self._reading, self._progress = True, (0, 0)
                threading.Thread(target=self._run, name="txbridge-overview", daemon=True).start()
            overview, (done, of) = self._overview, self._progress
            return {
                "reading": self._reading,
                "done": done,
                "of": of,
                "error": self._error,
                "seconds": round(self._seconds, 3),
                "read": None if overview is None else _shown(overview, cause),
            }

    def _is_due(self) -> bool:
        if self._reading:
            return False
        pause = max(_PAUSE_S, _PAUSE_TIMES * self._seconds)
        return self._ended is None or self._clock() - self._ended >= pause

    def _run(self) -> None:
        began, found, error = self._clock(), None, None
        try:
            found = self._read(self._note)
        except TxBridgeError as failure:
            error = str(failure)
        except KafkaException as failure:
            error = failure.args[0].str()
        except Exception as failure:  # noqa: BLE001 - a defect of ours must not look like an empty list
            error = repr(failure)
            _log.error("unexpected_error", exc_info=failure)
        finally:
            with self._lock:
                self._ended = self._clock()
                self._reading, self._error, self._seconds = False, error, self._ended - began
                self._overview = found or self._overview

    def _note(self, done: int, of: int) -> None:
        with self._lock:
            self._progress = (done, of)


def _shown(overview: Overview, cause: str) -> dict[str, Any]:
    chosen = [one for one in overview.causes if one.name == cause] or overview.causes
    messages = (message for one in chosen for message in one.oldest)
    states: dict[str, int] = {}
    for one in overview.causes:
        states[one.state.value] = states.get(one.state.value, 0) + one.count
    return {
        "at": overview.at,
        "partitions": overview.partitions,
        "total": overview.total,
        "states": states,
        "causes": [
            {"name": one.name, "text": plain(one.text, _LONGEST), "state": one.state.value, "count": one.count}
            for one in overview.causes[:_MOST_CAUSES]
        ],
        "more_causes": max(0, len(overview.causes) - _MOST_CAUSES),
        "unread": {str(partition): why for partition, why in overview.unread.items()},
        "warnings": list(overview.warnings[:_MOST_CAUSES]),
        "cause": cause if chosen is not overview.causes else "",
        "messages": list(_rows(messages, overview.at)),
    }


def _rows(messages: Iterable[OpenMessage], now: int) -> Iterable[dict[str, Any]]:
    def age(message: OpenMessage) -> tuple[int, int, int]:
        return message.born, message.partition, message.half_offset

    for message in nsmallest(MOST_SHOWN, messages, key=age):
        yield {
            "of": message.coordinates,
            "id": message.short_id,
            "state": message.state.value,
            "group": message.group,
            "topic": message.real_topic,
            "age": max(0, now - message.born) / 1000,
            "checks": message.checks,
            "next": next_step_of(message, now),
            "trouble": plain(trouble_of(message), _LONGEST),
        }
