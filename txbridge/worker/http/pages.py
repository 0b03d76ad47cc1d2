"""The status page and the requests that it sends. Everything is read; nothing can be changed."""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files

from txbridge.config.worker import WorkerSettings
from txbridge.web.exchange import PageAnswer
from txbridge.web.web_server import Page
from txbridge.worker.http.history_desk import HistoryDesk, as_json
from txbridge.worker.http.open_board import OpenBoard
from txbridge.worker.http.status import StatusBoard


def status_pages(settings: WorkerSettings, board: StatusBoard) -> dict[str, Page]:
    """The pages by path. All addresses in the page are relative, so that it works behind any path prefix."""
    opened = OpenBoard.of(settings)
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    return {
        "/status": lambda _: PageAnswer(HTTPStatus.OK, "text/html; charset=utf-8", html),
        "/status.json": lambda _: as_json(HTTPStatus.OK, board.take_snapshot()),
        "/open.json": lambda request: as_json(HTTPStatus.OK, opened.take_snapshot(request.query.get("cause", ""))),
        "/transaction.json": HistoryDesk.of(settings).read_page,
    }
