"""Committing or rolling back one message by hand: an END with SOURCE=operator, and what became of it."""

from __future__ import annotations

from txbridge.core.end_record import Decision, Source
from txbridge.core.states import TransactionState
from txbridge.errors import TxBridgeError, UsageError
from txbridge.operations.address import find_target
from txbridge.operations.connection import Connection
from txbridge.operations.details import with_keys
from txbridge.operations.end_writer import check_words, write_end
from txbridge.operations.model import Answer, Result
from txbridge.operations.reading import wait_applied
from txbridge.operations.verdict import judge_decision, refuse_decision
from txbridge.operations.view import PartitionView

#: A worker that has died is noticed after its session (6 s), and the take-over of its partitions takes some seconds
#: more; a worker that is well applies an END within milliseconds.
DEFAULT_TIMEOUT_S = 30.0


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
    if decision is Decision.UNKNOWN:
        raise UsageError("decide commit or rollback: unknown decides nothing")
    reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    if message.state is TransactionState.PENDING:
        [message] = with_keys(connection, message.partition, [message])
    refusal = refuse_decision(message, decision)
    if refusal is not None:
        return Answer(message, Result.REFUSED, refusal)
    end_offset = write_end(connection, [message], decision, Source.OPERATOR, reason, operator)
    offset = message.half_offset
    try:
        applied = wait_applied(connection, view, end_offset, [offset], timeout_s)
    except TxBridgeError as error:
        return Answer(message, Result.STORED, lost_sight(end_offset, error), end_offset)
    if applied is None:
        return Answer(message, Result.STORED, stored_detail(view, end_offset, timeout_s), end_offset)
    return judge_decision(
        message,
        decision,
        end_offset,
        applied.commands[offset],
        applied.outcomes[offset],
        view.offset_topic.parked.get(offset),
    )


def lost_sight(end_offset: int, error: TxBridgeError) -> str:
    """What to say when a command is stored, but what became of it can not be read: it must not look like a failure."""
    return (
        f"stored at END offset {end_offset}, but what became of it could not be learnt: {error}. Look with "
        f"`txbridge pending` later; do not repeat it"
    )


def stored_detail(view: PartitionView, end_offset: int, timeout_s: float) -> str:
    """What to say when no worker has applied a command in time, with what was odd in the topics: it may be why."""
    text = (
        f"stored at END offset {end_offset} of partition {view.partition}, but no worker has applied it within "
        f"{timeout_s:g} s: no worker alive yet, or this partition stands still. It will be applied as soon as "
        f"one serves it; do not repeat it"
    )
    return ". ".join([text, *view.warnings])
