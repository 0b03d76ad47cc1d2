"""Abandoning a held message: committed, and given up because it can not be delivered. END with SOURCE=abandon."""

from __future__ import annotations

from txbridge.core.end_record import Decision, Source
from txbridge.errors import TxBridgeError
from txbridge.operations.address import find_target
from txbridge.operations.connection import Connection
from txbridge.operations.end_writer import check_words, write_end
from txbridge.operations.model import Answer, Result
from txbridge.operations.reading import wait_applied
from txbridge.operations.resolve_message import DEFAULT_TIMEOUT_S, lost_sight, stored_detail
from txbridge.operations.verdict import judge_abandon, refuse_abandon


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
    refusal = refuse_abandon(message)
    if refusal is not None:
        return Answer(message, Result.REFUSED, refusal)
    if dry_run:
        body = (
            "its body is gone from the half topic" if message.gone else f"{message.size} bytes go to the discard topic"
        )
        detail = f"would be abandoned; {body}. It can not be delivered: {message.error}. Nothing was written"
        return Answer(message, Result.WOULD_ABANDON, detail)
    end_offset = write_end(connection, [message], Decision.UNKNOWN, Source.ABANDON, reason, operator)
    offset = message.half_offset
    try:
        applied = wait_applied(connection, view, end_offset, [offset], timeout_s)
    except TxBridgeError as error:
        return Answer(message, Result.STORED, lost_sight(end_offset, error), end_offset)
    if applied is None:
        return Answer(message, Result.STORED, stored_detail(view, end_offset, timeout_s), end_offset)
    return judge_abandon(message, end_offset, applied.commands[offset], applied.outcomes[offset])
