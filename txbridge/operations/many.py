"""One command for many open messages: first what it would do, then that, and to the same messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.operations.actions import DEFAULT_TIMEOUT_S, Action, act_on_batch, batches, sort_out
from txbridge.operations.connection import Connection
from txbridge.operations.details import with_keys
from txbridge.operations.end_writer import check_words
from txbridge.operations.model import Answer, OpenMessage, Result
from txbridge.operations.reading import read_view
from txbridge.operations.view import PartitionView


def act_on_many(
    connection: Connection,
    action: Action,
    messages: Iterable[OpenMessage],
    *,
    reason: str,
    operator: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Answer]:
    """Do it to these, and wait until workers have done it. The topics are read anew before anything is written.

    Each message is known by its coordinates and its transaction id: one that is finished meanwhile, or has another id,
    is refused. Errors are those of `resolve`; what goes wrong after the first command was written is in the answers.
    """
    reason, operator = check_words(reason, operator)
    wanted: dict[int, list[OpenMessage]] = defaultdict(list)
    for message in messages:
        wanted[message.partition].append(message)
    # All is read before anything is written.
    views = {partition: read_view(connection, partition) for partition in sorted(wanted)}
    work = {partition: _as_now(connection, action, view, wanted[partition]) for partition, view in views.items()}
    deadline = Deadline(timeout_s)
    answers: list[Answer] = []
    written = False
    for partition, (able, refused) in work.items():
        answers += refused
        for batch in batches(able):
            try:
                answers += act_on_batch(
                    connection, action, views[partition], batch, reason, operator, timeout_s, deadline
                )
            except TxBridgeError as error:
                if not written:
                    raise
                answers += [Answer(message, Result.NOT_KNOWN, str(error)) for message in batch]
            written = True
    return sorted(answers, key=lambda answer: (answer.message.partition, answer.message.half_offset))


def _as_now(
    connection: Connection, action: Action, view: PartitionView, messages: Sequence[OpenMessage]
) -> tuple[list[OpenMessage], list[Answer]]:
    """Those on which the action has an effect as they are now, and the answers about the others."""
    able: list[OpenMessage] = []
    refused: list[Answer] = []
    for message in messages:
        now = view.find(message.half_offset)
        if now is None or now.transaction_id != message.transaction_id:
            refused.append(Answer(message, Result.REFUSED, "it is finished meanwhile. Nothing was written"))
        else:
            able.append(now)
    if action is Action.COMMIT:
        pending = [message for message in able if message.state is TransactionState.PENDING]
        bodies = {message.half_offset: message for message in with_keys(connection, view.partition, pending)}
        able = [bodies.get(message.half_offset, message) for message in able]
    # The key is not to be kept longer than it is needed.
    able = [replace(message, key=None) for message in able]
    able, without_effect = sort_out(action, able)
    return able, refused + without_effect
