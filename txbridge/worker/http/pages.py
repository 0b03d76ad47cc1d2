"""The status page and what it asks for, behind one port. Acting needs the token, before anything else."""

from __future__ import annotations

import hmac
import json
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
from txbridge.worker.http.server import Answered, Asked, Page
from txbridge.worker.http.status import StatusBoard

#: A worker applies an END in milliseconds; whoever waits in a browser sees "stored" after this.
_WAIT_S = 10.0
#: Histories and decisions at the same time: each has connections of its own, and nobody shall open hundreds.
_AT_ONCE = 2

_DECISIONS = {"commit": Decision.COMMIT, "rollback": Decision.ROLLBACK}
_COMMANDS = {"resume": resume, "abandon": abandon}
_log = get_logger("txbridge.worker")


def status_pages(settings: WorkerSettings, board: StatusBoard) -> dict[str, Page]:
    """By path. All addresses in the page are relative, so that it works behind any path prefix."""
    busy = threading.BoundedSemaphore(_AT_ONCE)
    pages: dict[str, Page] = {
        "/status": _page,
        "/status.json": partial(_status, board),
        "/transaction.json": partial(_transaction, settings, busy),
    }
    if settings.status_page == "act":
        pages["/act"] = partial(_act, settings, busy)
    return pages


def _page(asked: Asked) -> Answered:
    if asked.method != "GET":
        return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    return Answered(HTTPStatus.OK, "text/html; charset=utf-8", html)


def _status(board: StatusBoard, asked: Asked) -> Answered:
    if asked.method != "GET":
        return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    return _json(HTTPStatus.OK, board.snapshot())


def _transaction(settings: WorkerSettings, busy: threading.BoundedSemaphore, asked: Asked) -> Answered:
    """`?of=<partition>:<half offset>` or a whole transaction id; the answer never holds the whole id."""
    target = asked.query.get("of", "")
    if asked.method != "GET":
        return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    if not busy.acquire(blocking=False):
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "others are being looked up: try again in a moment")
    try:
        return _json(HTTPStatus.OK, asdict(read_history(Connection.open(settings), target)))
    except UsageError as error:
        return _problem(HTTPStatus.NOT_FOUND, str(error))
    except TxBridgeError as error:
        return _problem(HTTPStatus.BAD_GATEWAY, str(error))
    finally:
        busy.release()


def _act(settings: WorkerSettings, busy: threading.BoundedSemaphore, asked: Asked) -> Answered:
    """A decision by hand, as `txbridge resolve` and `resume` make it, with the same record of who and why."""
    expected = settings.status_token.get_secret_value()
    if not hmac.compare_digest(asked.token.encode(), expected.encode()):
        _log.warning("status_page_token_refused")
        return _problem(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
    if asked.method != "POST":
        return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "POST only")
    try:
        order = _order(asked.body)
    except UsageError as error:
        return _problem(HTTPStatus.BAD_REQUEST, str(error))
    if not busy.acquire(blocking=False):
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "others are at work: try again in a moment; nothing was done")
    try:
        answer = _carry_out(Connection.open(settings), order)
    except UsageError as error:
        return _problem(HTTPStatus.BAD_REQUEST, str(error))
    except TxBridgeError as error:
        return _problem(HTTPStatus.BAD_GATEWAY, str(error))
    finally:
        busy.release()
    _log.info(
        "acted_by_status_page",
        action=order["action"],
        message=answer.message.coordinates,
        operator=order["operator"],
        result=answer.result.value,
    )
    return _json(HTTPStatus.OK, {"result": answer.result.value, "detail": answer.detail})


def _order(body: bytes) -> dict[str, str]:
    try:
        given = json.loads(body)
    except ValueError:
        raise UsageError("the body must be JSON") from None
    fields = ("of", "action", "reason", "operator")
    if not isinstance(given, Mapping) or not all(isinstance(given.get(name), str) for name in fields):
        raise UsageError("the body must be JSON with the texts of, action, reason and operator")
    order = {name: given[name] for name in fields}
    if order["action"] not in {*_DECISIONS, *_COMMANDS}:
        raise UsageError("action must be commit, rollback, resume or abandon")
    return order


def _carry_out(connection: Connection, order: Mapping[str, str]) -> Answer:
    who: dict[str, Any] = {"reason": order["reason"], "operator": order["operator"], "timeout_s": _WAIT_S}
    command = _COMMANDS.get(order["action"])
    if command is not None:
        return command(connection, order["of"], **who)
    return resolve(connection, order["of"], _DECISIONS[order["action"]], **who)


def _json(status: HTTPStatus, content: object) -> Answered:
    return Answered(status, "application/json", json.dumps(content).encode())


def _problem(status: HTTPStatus, text: str) -> Answered:
    return _json(status, {"error": text})
