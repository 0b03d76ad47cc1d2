"""Histories of single transactions for the status page: one at a time, and each kept for a moment."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Any

from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError, UsageError
from txbridge.web.exchange import PageAnswer, PageRequest
from txbridge.worker.http.topic_reading import read_topics

#: Time (s) for a history: 20 s for the search of an id, and the rest to read what came after it.
_HISTORY_S = 45.0
#: Time (s) for which an answer is given again, so that many people who look at the same transaction read it once.
_KEPT_S = 1.0


class HistoryDesk:
    """Thread-safe. `read` looks a transaction up and may take long; it raises TxBridgeError."""

    def __init__(self, read: Callable[[str], dict[str, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._target = ""
        self._answer: Future[PageAnswer] | None = None
        self._ended = 0.0

    @classmethod
    def of(cls, settings: WorkerSettings) -> HistoryDesk:
        """The desk of a worker's namespace."""
        return cls(lambda target: read_topics(settings, _HISTORY_S, of=target))

    def read_page(self, request: PageRequest) -> PageAnswer | Future[PageAnswer]:
        """Answer `?of=<partition>:<half offset>` or a whole transaction id; the answer never holds the whole id."""
        target = request.query.get("of", "")
        with self._lock:
            answer = self._answer
            is_same = answer is not None and target == self._target
            if answer is not None and not answer.done() and not is_same:
                error = {"error": "another transaction is being looked up: try again in a moment"}
                return as_json(HTTPStatus.SERVICE_UNAVAILABLE, error)
            if answer is None or not is_same or (answer.done() and self._clock() - self._ended > _KEPT_S):
                answer = self._answer = Future()
                self._target = target
                run = partial(self._look_up, target, answer)
                threading.Thread(target=run, name="txbridge-history", daemon=True).start()
            return answer

    def _look_up(self, target: str, answer: Future[PageAnswer]) -> None:
        try:
            found = as_json(HTTPStatus.OK, self._read(target))
        except UsageError as error:
            found = as_json(HTTPStatus.NOT_FOUND, {"error": str(error)})
        except TxBridgeError as error:
            found = as_json(HTTPStatus.BAD_GATEWAY, {"error": str(error)})
        except Exception as error:  # noqa: BLE001 - the server logs it, and the next one is looked up
            self._ended = self._clock()
            answer.set_exception(error)
            return
        self._ended = self._clock()
        answer.set_result(found)


def as_json(status: HTTPStatus, content: object) -> PageAnswer:
    return PageAnswer(status, "application/json", json.dumps(content).encode())
