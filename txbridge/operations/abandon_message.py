"""Abandoning a held message: committed, and given up because it can not be delivered. END with SOURCE=abandon."""

from __future__ import annotations

from txbridge.operations.actions import DEFAULT_TIMEOUT_S, Action, act_on_batch, refuse
from txbridge.operations.address import find_target
from txbridge.operations.connection import Connection
from txbridge.operations.end_writer import check_words
from txbridge.operations.model import Answer, Result


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
    """Give up one held message, and wait until a worker has done it. It will never be delivered.

    A dry run says what would be abandoned and writes nothing. Arguments and errors are those of `resolve`.
    """
    if not dry_run:
        reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    refused = refuse(Action.ABANDON, message)
    if refused is not None:
        return refused
    if dry_run:
        body = (
            "its body is gone from the half topic" if message.gone else f"{message.size} bytes go to the discard topic"
        )
        detail = f"would be abandoned; {body}. It can not be delivered: {message.error}. Nothing was written"
        return Answer(message, Result.WOULD_ABANDON, detail)
    [answer] = act_on_batch(connection, Action.ABANDON, view, [message], reason, operator, timeout_s)
    return answer
