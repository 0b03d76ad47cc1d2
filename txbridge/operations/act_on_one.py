"""Commands for one open message, with their results: commit, rollback, resume and abandon."""

from __future__ import annotations

from txbridge.core.decision_record import Decision
from txbridge.core.states import TransactionState
from txbridge.errors import UsageError
from txbridge.operations.actions import DEFAULT_TIMEOUT_S, Action, act_on_batch, refuse, with_losses
from txbridge.operations.address import find_target
from txbridge.operations.connection import Connection
from txbridge.operations.decision_writer import check_words
from txbridge.operations.model import Answer, Result

_ACTIONS = {Decision.COMMIT: Action.COMMIT, Decision.ROLLBACK: Action.ROLLBACK}


def resolve(
    connection: Connection,
    target: str,
    decision: Decision,
    *,
    reason: str,
    operator: str,
    id_prefix: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Answer:
    """Decide one open message by hand, wait until a worker has applied the decision, and return the result.

    `target` is `<partition>:<half offset>` or the whole transaction id; `id_prefix` guards against a mistyped offset.
    The first decision wins, no matter who made it. When the topics already show that another one has won, nothing is
    written. `timeout_s` bounds the wait for the worker. After it the result is STORED, and the command will still be
    applied.

    Before anything is written it raises UsageError, FinishedError, HangingTransactionError, KafkaUnreachableError and
    EnvironmentProblemError. It raises the last one also when Kafka did not acknowledge the command; the text tells.
    Later errors are in the answer.
    """
    action = _ACTIONS.get(decision)
    if action is None:
        raise UsageError("decide commit or rollback: unknown decides nothing")
    return _act(connection, action, target, reason, operator, id_prefix, timeout_s)


def resume(
    connection: Connection,
    target: str,
    *,
    reason: str,
    operator: str,
    id_prefix: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Answer:
    """Resume one discarded message (RocketMQ's RESUME_CHECK_HALF_MESSAGE): pending again, and checked from check 1 on.

    It waits until a worker has applied it. A second resume has no effect. Arguments and errors are those of `resolve`.
    """
    return _act(connection, Action.RESUME, target, reason, operator, id_prefix, timeout_s)


def abandon(
    connection: Connection,
    target: str,
    *,
    reason: str,
    operator: str,
    id_prefix: str | None = None,
    dry_run: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Answer:
    """Give up one held or scheduled message: it is committed, and will not be delivered.

    It waits until a worker has applied it. A dry run tells the message that would be abandoned, and writes nothing.
    Arguments and errors are those of `resolve`.
    """
    if not dry_run:
        return _act(connection, Action.ABANDON, target, reason, operator, id_prefix, timeout_s)
    _, message = find_target(connection, target, id_prefix)
    body = "its body is gone from the half topic" if message.gone else f"{message.size} bytes go to the discard topic"
    is_held = message.state is TransactionState.HELD
    why = f"It cannot be delivered: {message.error}" if is_held else "Its time has not come"
    detail = f"would be abandoned; {body}. {why}. Nothing was written"
    return refuse(Action.ABANDON, message) or Answer(message, Result.WOULD_ABANDON, detail)


def _act(
    connection: Connection,
    action: Action,
    target: str,
    reason: str,
    operator: str,
    id_prefix: str | None,
    timeout_s: float,
) -> Answer:
    reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    [message] = with_losses(connection, action, message.partition, [message])
    refused = refuse(action, message)
    if refused is not None:
        return refused
    [answer] = act_on_batch(connection, action, view, [message], reason, operator, timeout_s)
    return answer
