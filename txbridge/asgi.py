"""Answers of a FastAPI or Starlette application to the errors of announcements, and its readiness.

app = FastAPI(lifespan=bridge.lifespan, exception_handlers=EXCEPTION_HANDLERS)
app.add_route("/readyz", readiness(bridge))
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from txbridge.client.errors import AlreadyDoneError, AnnouncementError, OutcomeUnknownError, PrepareError, answer_of

if TYPE_CHECKING:
    from txbridge.client.async_bridge import AsyncBridge
    from txbridge.client.bridge import Bridge


async def _answer(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AnnouncementError)
    status, body, headers = answer_of(error)
    return JSONResponse(body, status, headers)


#: For `exception_handlers` of FastAPI and Starlette. PrepareError: 503 with Retry-After, and nothing has happened.
#: OutcomeUnknownError: 503 with the short id of the transaction, as logs and `txbridge show` print it.
#: AlreadyDoneError: 200 with the short id of the first one, the answer that the caller has missed.
EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    PrepareError: _answer,
    OutcomeUnknownError: _answer,
    AlreadyDoneError: _answer,
}


def readiness(bridge: Bridge | AsyncBridge) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return the endpoint of a readiness probe: 200 while Kafka answers, or the bridge needs none; else 503."""

    async def readyz(_: Request) -> JSONResponse:
        return JSONResponse({"ok": bridge.is_connected}, 200 if bridge.is_connected else 503)

    return readyz
