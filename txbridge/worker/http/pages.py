"""The status page and the requests that it sends, behind one port. Everything is read; nothing can be changed."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from importlib.resources import files

from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError, UsageError
from txbridge.operations import Connection, read_history
from txbridge.web.exchange import Answer, Request
from txbridge.web.server import Page
from txbridge.worker.http.open_board import OpenBoard
from txbridge.worker.http.status import StatusBoard


def status_pages(settings: WorkerSettings, board: StatusBoard) -> dict[str, Page]:
    """The pages by path. All addresses in the page are relative, so that it works behind any path prefix."""
    opened = OpenBoard.of(settings)
    return {
        "/status": _page,
        "/status.json": lambda _request: _as_json(HTTPStatus.OK, board.snapshot()),
        "/open.json": lambda request: _as_json(HTTPStatus.OK, opened.snapshot(request.query.get("cause", ""))),
        "/transaction.json": partial(_transaction, settings, threading.Lock()),
    }


def _as_json(status: HTTPStatus, content: object) -> Answer:
    return Answer(status, "application/json", json.dumps(content).encode())


def _page(_request: Request) -> Answer:
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    return Answer(HTTPStatus.OK, "text/html; charset=utf-8", html)


def _transaction(settings: WorkerSettings, busy: threading.Lock, request: Request) -> Answer:
    """Answer `?of=<partition>:<half offset>` or a whole transaction id; the answer never holds the whole id."""
    if not busy.acquire(blocking=False):
        text = "another transaction is being looked up: try again in a moment"
        return _as_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": text})
    try:
        found = read_history(Connection.open(settings), request.query.get("of", ""))
    except UsageError as error:
        return _as_json(HTTPStatus.NOT_FOUND, {"error": str(error)})
    except TxBridgeError as error:
        return _as_json(HTTPStatus.BAD_GATEWAY, {"error": str(error)})
    else:
        return _as_json(HTTPStatus.OK, asdict(found))
    finally:
        busy.release()
