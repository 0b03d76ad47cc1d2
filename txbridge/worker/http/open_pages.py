"""The status page's list of open messages, and actions on many of them by cause: a dry run, then the action itself."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError, UsageError
from txbridge.log import get_logger
from txbridge.operations import Answer, Connection, OpenMessage, Result
from txbridge.operations.act_on_many import act_on_many
from txbridge.operations.actions import Action, foretell
from txbridge.operations.overview import OTHER_CAUSES, read_overview
from txbridge.text import plain
from txbridge.worker.http.json_answers import as_json, explain, one_of, require_method, require_token, texts_of
from txbridge.worker.http.open_board import OpenBoard
from txbridge.worker.http.server import Answered, Asked

#: Most messages of one plan: as many as one END record holds, some seconds for a worker and a page. The rest needs
#: another plan.
MOST_AT_ONCE = 1_000
#: A plan expires after this: only a person who has just looked at it may carry it out.
_PLAN_S = 600.0
_MOST_PLANS = 8
#: Time to wait until workers have applied the decisions. Later ones are applied all the same.
_WAIT_S = 30.0
#: Most messages and refusals that an answer names.
_MOST_NAMED = 20
_LONGEST = 500

_DRY_RUN = frozenset({Result.WOULD_COMMIT, Result.WOULD_ROLL_BACK, Result.WOULD_RESUME, Result.WOULD_ABANDON})
_DONE = frozenset(
    {Result.COMMITTED, Result.ROLLED_BACK, Result.RESUMED, Result.ALREADY_RESUMED, Result.ABANDONED},
)
_log = get_logger("txbridge.worker")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The result of a dry run: the action is carried out for these messages and for no others."""

    action: Action
    cause: str
    messages: Sequence[OpenMessage]
    until: float


class OpenPages:
    """The pages about open messages. `busy` bounds the requests that ask Kafka at the same time."""

    def __init__(
        self,
        settings: WorkerSettings,
        busy: threading.BoundedSemaphore,
        board: OpenBoard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._busy = busy
        self._board = board
        self._clock = clock
        self._lock = threading.Lock()
        self._plans: dict[str, _Plan] = {}

    def listed(self, asked: Asked) -> Answered:
        """Answer `?cause=<name>` with the oldest messages of a cause, or of all."""
        try:
            require_method(asked, "GET")
        except TxBridgeError as error:
            return explain(error)
        return as_json(HTTPStatus.OK, self._board.snapshot(asked.query.get("cause", "")))

    def plan(self, asked: Asked) -> Answered:
        """Make a dry run for a cause and an action; the answer names the plan. Nothing is written."""
        try:
            require_token(self._settings, asked)
            require_method(asked, "POST")
            order = texts_of(asked.body, "cause", "action")
            action = _action(order["action"])
            with one_of(self._busy, "others are at work: try again in a moment"):
                return as_json(HTTPStatus.OK, self._plan(order["cause"], action))
        except TxBridgeError as error:
            return explain(error)

    def carry_out(self, asked: Asked) -> Answered:
        """Carry out a plan, once, with a reason and an operator."""
        try:
            require_token(self._settings, asked)
            require_method(asked, "POST")
            order = texts_of(asked.body, "plan", "reason", "operator")
            with one_of(self._busy, "others are at work: try again in a moment; nothing was done"):
                return as_json(HTTPStatus.OK, self._carry_out(**order))
        except TxBridgeError as error:
            return explain(error)

    def _plan(self, name: str, action: Action) -> dict[str, Any]:
        overview = read_overview(Connection.open(self._settings), MOST_AT_ONCE, only=name)
        cause = next((one for one in overview.causes if one.name == name), None)
        if cause is None:
            raise UsageError("no message is open for this cause any more")
        if cause.text.endswith(OTHER_CAUSES):
            raise UsageError("these have many causes: act on one cause after the other")
        answers = foretell(action, cause.oldest)
        would = [answer.message for answer in answers if answer.result in _DRY_RUN]
        refusals = Counter(plain(answer.detail, _LONGEST) for answer in answers if answer.result not in _DRY_RUN)
        return {
            "plan": self._keep(_Plan(action, cause.text, would, self._clock() + _PLAN_S)),
            "action": action.value,
            "cause": plain(cause.text, _LONGEST),
            "would": len(would),
            "first": [message.coordinates for message in would[:_MOST_NAMED]],
            "refused": refusals.total(),
            "refusals": dict(refusals.most_common(_MOST_NAMED)),
            "left": cause.count - len(answers),
            "unread": {str(partition): why for partition, why in overview.unread.items()},
        }

    def _keep(self, plan: _Plan) -> str:
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._plans[name] = plan
            while len(self._plans) > _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
        return name

    def _carry_out(self, plan: str, reason: str, operator: str) -> dict[str, Any]:
        if not reason.strip() or not operator.strip():
            raise UsageError("a reason and an operator are needed: they are recorded with the decision")
        with self._lock:
            found = self._plans.pop(plan, None)
        if found is None or found.until < self._clock():
            raise UsageError("this plan is not known (any more): make another dry run")
        try:
            answers = act_on_many(
                Connection.open(self._settings),
                found.action,
                found.messages,
                reason=reason,
                operator=operator,
                timeout_s=_WAIT_S,
            )
        finally:
            self._board.forget()
        results = dict(Counter(answer.result.value for answer in answers))
        _log.info(
            "acted_on_many_by_status_page",
            action=found.action.value,
            cause=found.cause,
            operator=operator,
            results=results,
        )
        return {"action": found.action.value, "results": results, "others": _named(answers)}


def _named(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """The first of the messages for which the action is not done."""
    others = [answer for answer in answers if answer.result not in _DONE]
    return [
        {"of": one.message.coordinates, "result": one.result.value, "detail": plain(one.detail, _LONGEST)}
        for one in others[:_MOST_NAMED]
    ]


def _action(text: str) -> Action:
    try:
        return Action(text)
    except ValueError:
        raise UsageError("action must be commit, rollback, resume or abandon") from None
