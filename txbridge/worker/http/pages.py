"""The status page and the requests that it sends. Everything is read; nothing can be changed."""

from __future__ import annotations

import json
from http import HTTPStatus
from importlib.resources import files

from txbridge.web.exchange import PageAnswer
from txbridge.web.web_server import Page
from txbridge.worker.http.status import StatusBoard


def status_pages(board: StatusBoard) -> dict[str, Page]:
    """The pages by path. All addresses in the page are relative, so that it works behind any path prefix."""
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    return {
        "/status": lambda _: PageAnswer(HTTPStatus.OK, "text/html; charset=utf-8", html),
        "/status.json": lambda _: _as_json(board.take_snapshot()),
        "/open.json": lambda request: _as_json(board.list_open(request.query.get("cause", ""))),
    }


def _as_json(content: object) -> PageAnswer:
    return PageAnswer(HTTPStatus.OK, "application/json", json.dumps(content).encode())
