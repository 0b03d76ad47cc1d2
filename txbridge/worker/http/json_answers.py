"""Common parts of the worker's pages: answers in JSON, and the token that actions need."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from threading import BoundedSemaphore

from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError, UsageError
from txbridge.log import get_logger
from txbridge.worker.http.server import Answered, Asked

_log = get_logger("txbridge.worker")


class RefusedRequestError(TxBridgeError):
    """A request that is refused, with the answer to it."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = problem(status, text)


def as_json(status: HTTPStatus, content: object) -> Answered:
    return Answered(status, "application/json", json.dumps(content).encode())


def problem(status: HTTPStatus, text: str) -> Answered:
    return as_json(status, {"error": text})


def explain(error: TxBridgeError) -> Answered:
    """The answer to a request that could not be carried out."""
    if isinstance(error, RefusedRequestError):
        return error.answer
    is_mistake = isinstance(error, UsageError)
    return problem(HTTPStatus.BAD_REQUEST if is_mistake else HTTPStatus.BAD_GATEWAY, str(error))


def require_token(settings: WorkerSettings, asked: Asked) -> None:
    """Require the token for an action, before anything else is looked at. Raises RefusedRequestError."""
    expected = settings.status_token.get_secret_value()
    if not hmac.compare_digest(asked.token.encode(), expected.encode()):
        _log.warning("status_page_token_refused")
        raise RefusedRequestError(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")


def require_method(asked: Asked, method: str) -> None:
    """Require an HTTP method. Raises RefusedRequestError."""
    if asked.method != method:
        raise RefusedRequestError(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} only")


@contextmanager
def one_of(busy: BoundedSemaphore, otherwise: str) -> Iterator[None]:
    """Take one of the places that `busy` has while the block runs. Raises RefusedRequestError if none is free."""
    if not busy.acquire(blocking=False):
        raise RefusedRequestError(HTTPStatus.SERVICE_UNAVAILABLE, otherwise)
    try:
        yield
    finally:
        busy.release()


def texts_of(body: bytes, *names: str) -> dict[str, str]:
    """The texts with these names in a JSON body. Raises UsageError."""
    try:
        given = json.loads(body)
    except ValueError:
        raise UsageError("the body must be JSON") from None
    if not isinstance(given, dict) or not all(isinstance(given.get(name), str) for name in names):
        raise UsageError(f"the body must be JSON with the texts {', '.join(names[:-1])} and {names[-1]}")
    return {name: given[name] for name in names}
