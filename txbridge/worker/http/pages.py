"""The status page and the requests that it sends, behind one port. Actions need the token."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from txbridge.config.worker import WorkerSettings
from txbridge.core.end_record import Decision
from txbridge.errors import TxBridgeError, UsageError
from txbridge.log import get_logger
from txbridge.operations import Answer, Connection, abandon, read_history, resolve, resume
from txbridge.worker.http.json_answers import as_json, explain, one_of, problem, require_method, require_token, texts_of
from txbridge.worker.http.open_board import OpenBoard
from txbridge.worker.http.open_pages import OpenPages
from txbridge.worker.http.server import Answered, Asked, Page
from txbridge.worker.http.status import StatusBoard

#: A worker applies an END record in milliseconds. After this, a person at a browser sees "stored".
_WAIT_S = 10.0
#: Most histories and decisions at the same time: each has connections of its own, and nobody must open hundreds.
_AT_ONCE = 2

_DECISIONS = {"commit": Decision.COMMIT, "rollback": Decision.ROLLBACK}
_COMMANDS = {"resume": resume, "abandon": abandon}
_log = get_logger("txbridge.worker")


def status_pages(settings: WorkerSettings, board: StatusBoard) -> dict[str, Page]:
    """The pages by path. All addresses in the page are relative, so that it works behind any path prefix."""
    busy = threading.BoundedSemaphore(_AT_ONCE)
    opened = OpenPages(settings, busy, OpenBoard.of(settings))
    pages: dict[str, Page] = {
        "/status": _page,
        "/status.json": partial(_status, board),
        "/open.json": opened.listed,
        "/transaction.json": partial(_transaction, settings, busy),
    }
    if settings.status_page == "act":
        pages["/act"] = partial(_act, settings, busy)
        pages["/plan"] = opened.plan
        pages["/carry-out"] = opened.carry_out
    return pages


def _page(asked: Asked) -> Answered:
    if asked.method != "GET":
        return problem(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    return Answered(HTTPStatus.OK, "text/html; charset=utf-8", html)


def _status(board: StatusBoard, asked: Asked) -> Answered:
    if asked.method != "GET":
        return problem(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    return as_json(HTTPStatus.OK, board.snapshot())


def _transaction(settings: WorkerSettings, busy: threading.BoundedSemaphore, asked: Asked) -> Answered:
    """Answer `?of=<partition>:<half offset>` or a whole transaction id; the answer never holds the whole id."""
    try:
        require_method(asked, "GET")
        with one_of(busy, "others are being looked up: try again in a moment"):
            return as_json(HTTPStatus.OK, asdict(read_history(Connection.open(settings), asked.query.get("of", ""))))
    except UsageError as error:
        return problem(HTTPStatus.NOT_FOUND, str(error))
    except TxBridgeError as error:
        return explain(error)


def _act(settings: WorkerSettings, busy: threading.BoundedSemaphore, asked: Asked) -> Answered:
    """Make a decision by hand, as `txbridge resolve` and `resume` do, with the same record of operator and reason."""
    try:
        require_token(settings, asked)
        require_method(asked, "POST")
        order = texts_of(asked.body, "of", "action", "reason", "operator")
        if order["action"] not in {*_DECISIONS, *_COMMANDS}:
            raise UsageError("action must be commit, rollback, resume or abandon")
        with one_of(busy, "others are at work: try again in a moment; nothing was done"):
            answer = _carry_out(Connection.open(settings), order)
    except TxBridgeError as error:
        return explain(error)
    _log.info(
        "acted_by_status_page",
        action=order["action"],
        message=answer.message.coordinates,
        operator=order["operator"],
        result=answer.result.value,
    )
    return as_json(HTTPStatus.OK, {"result": answer.result.value, "detail": answer.detail})


def _carry_out(connection: Connection, order: Mapping[str, str]) -> Answer:
    who: dict[str, Any] = {"reason": order["reason"], "operator": order["operator"], "timeout_s": _WAIT_S}
    command = _COMMANDS.get(order["action"])
    if command is not None:
        return command(connection, order["of"], **who)
    return resolve(connection, order["of"], _DECISIONS[order["action"]], **who)
