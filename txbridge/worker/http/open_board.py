"""The open messages of the whole namespace, as the status page lists them: read from the topics, and kept for a while.

They are read only when a person looks at them, in a process of its own. No owner of a partition is asked or waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError
from txbridge.log import get_logger
from txbridge.worker.http.topic_reading import read_topics

#: Time (s) for all partitions. Each takes 10 s at most.
_ALL_S = 900.0
#: Least pause between two readings: in seconds, and as a multiple of the last one's duration. So reading takes at most
#: a tenth of the time, however many people look.
_PAUSE_S, _PAUSE_TIMES = 10.0, 9.0

_log = get_logger("txbridge.worker")


class OpenBoard:
    """Thread-safe. `read` reads the whole namespace and may take long; it is called by one thread at a time."""

    def __init__(
        self, read: Callable[[Callable[[int, int], None]], dict[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._reading = False
        self._progress = (0, 0)
        self._overview: dict[str, Any] | None = None
        self._error: str | None = None
        self._seconds = 0.0
        #: Monotonic time (s) at which the last reading ended; None before that.
        self._ended: float | None = None

    @classmethod
    def of(cls, settings: WorkerSettings) -> OpenBoard:
        """The board of a worker's namespace."""
        return cls(lambda progress: read_topics(settings, _ALL_S, progress=progress))

    def take_snapshot(self, cause: str) -> dict[str, Any]:
        """The last reading as JSON values, with the oldest messages of one cause or of all. Starts a new one if due."""
        with self._lock:
            if self._is_due():
                self._reading, self._progress = True, (0, 0)
                threading.Thread(target=self._read_all, name="txbridge-overview", daemon=True).start()
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

    def _read_all(self) -> None:
        began, found, error = self._clock(), None, None
        try:
            found = self._read(self._note_progress)
        except TxBridgeError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - a defect of ours must not look like an empty list
            error = repr(failure)
            _log.error("unexpected_error", exc_info=failure)
        finally:
            with self._lock:
                self._ended = self._clock()
                self._reading, self._error, self._seconds = False, error, self._ended - began
                self._overview = found or self._overview

    def _note_progress(self, done: int, of: int) -> None:
        with self._lock:
            self._progress = (done, of)


def _shown(overview: dict[str, Any], cause: str) -> dict[str, Any]:
    chosen = next((one for one in overview["causes"] if one["name"] == cause), None)
    causes = [{name: value for name, value in one.items() if name != "messages"} for one in overview["causes"]]
    messages = overview["messages"] if chosen is None else chosen["messages"]
    return {**overview, "causes": causes, "cause": "" if chosen is None else cause, "messages": messages}
