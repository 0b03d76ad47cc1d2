"""Committing or rolling back one message by hand: an END with SOURCE=operator, and what became of it."""

from __future__ import annotations

from txbridge.core.end_record import Decision
from txbridge.core.states import TransactionState
from txbridge.errors import UsageError
from txbridge.operations.actions import DEFAULT_TIMEOUT_S, Action, act_on_batch, refuse
from txbridge.operations.address import find_target
from txbridge.operations.connection import Connection
from txbridge.operations.details import with_keys
from txbridge.operations.end_writer import check_words
from txbridge.operations.model import Answer

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
    """Decide one open message, wait until a worker has applied it, and say what became of it.

    `target` is `<partition>:<half offset>` or the whole transaction id; `id_prefix` guards against a mistyped offset.
    The first decision wins, whoever made it: when the topics tell already that another one has won, nothing is written.
    `timeout_s` bounds the wait for the worker; then the result is STORED, and the command will be applied all the same.

    Raises, before anything is written, UsageError, FinishedError, HangingTransactionError, KafkaUnreachableError and
    EnvironmentProblemError; the last also when Kafka did not acknowledge the command, which its text says. What goes
    wrong after that is in the answer.
    """
    action = _ACTIONS.get(decision)
    if action is None:
        raise UsageError("decide commit or rollback: unknown decides nothing")
    reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    if message.state is TransactionState.PENDING:
        [message] = with_keys(connection, message.partition, [message])
    refused = refuse(action, message)
    if refused is not None:
        return refused
    [answer] = act_on_batch(connection, action, view, [message], reason, operator, timeout_s)
    return answer
