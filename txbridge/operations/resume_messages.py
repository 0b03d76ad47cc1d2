"""Resuming discarded messages (RocketMQ's RESUME_CHECK_HALF_MESSAGE): pending again, and checked from check 1 on."""

from __future__ import annotations

from collections.abc import Sequence

from txbridge.core.names import is_group
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import UsageError
from txbridge.operations.actions import DEFAULT_TIMEOUT_S, Action, act_on_batch, batches, foretell, sort_out
from txbridge.operations.address import find_target
from txbridge.operations.connection import Connection
from txbridge.operations.end_writer import check_words
from txbridge.operations.model import Answer, OpenMessage
from txbridge.operations.reading import read_views
from txbridge.operations.view import PartitionView


def resume(
    connection: Connection,
    target: str,
    *,
    reason: str,
    operator: str,
    id_prefix: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Answer:
    """Resume one discarded message, and wait until a worker has done it; a second resume of it does nothing.

    Arguments and errors are those of `resolve`.
    """
    reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    [answer] = _resume(connection, view, [message], reason, operator, timeout_s, Deadline(timeout_s))
    return answer


def resume_group(
    connection: Connection,
    group: str,
    *,
    reason: str,
    operator: str,
    dry_run: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Answer]:
    """Resume every discarded message of a producer group, in the order of partitions and offsets.

    A dry run says which they are and writes nothing. Errors are those of `resolve`.
    """
    if not is_group(group):
        raise UsageError(f"{group[:40]!r} can not be a producer group: 1 to 200 characters of A-Z a-z 0-9 . _ -")
    if not dry_run:
        reason, operator = check_words(reason, operator)
    answers: list[Answer] = []
    views = read_views(connection)
    deadline = Deadline(timeout_s)
    for view in views:
        found = [
            message
            for message in view.messages()
            if message.state is TransactionState.DISCARDED and message.group == group
        ]
        if dry_run:
            answers += foretell(Action.RESUME, found)
        else:
            answers += _resume(connection, view, found, reason, operator, timeout_s, deadline)
    return answers


def _resume(
    connection: Connection,
    view: PartitionView,
    messages: Sequence[OpenMessage],
    reason: str,
    operator: str,
    timeout_s: float,
    deadline: Deadline,
) -> list[Answer]:
    """Resume these messages of one partition, and say what became of each in the order of offsets."""
    wanted, answers = sort_out(Action.RESUME, messages)
    for batch in batches(wanted):
        answers += act_on_batch(connection, Action.RESUME, view, batch, reason, operator, timeout_s, deadline)
    return sorted(answers, key=lambda answer: answer.message.half_offset)
