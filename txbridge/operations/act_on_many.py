"""One command for many open messages: first a dry run, then the action on the same messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from txbridge.core.names import is_group
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError, UsageError
from txbridge.operations.actions import (
    DEFAULT_TIMEOUT_S,
    Action,
    act_on_batch,
    batches,
    foretell,
    sort_out,
    with_losses,
)
from txbridge.operations.address import FinishedError
from txbridge.operations.causes import cause_if
from txbridge.operations.connection import Connection
from txbridge.operations.decision_writer import check_words
from txbridge.operations.group_states import GroupStates
from txbridge.operations.model import Answer, OpenMessage, Result, Selection
from txbridge.operations.reading import read_views
from txbridge.operations.view import PartitionView
from txbridge.text import counted

#: The states of the messages that an action selects.
_STATES = {
    Action.COMMIT: frozenset({TransactionState.PENDING}),
    Action.ROLLBACK: frozenset({TransactionState.PENDING}),
    Action.ABANDON: frozenset({TransactionState.HELD, TransactionState.SCHEDULED}),
    Action.RESUME: frozenset({TransactionState.DISCARDED}),
}


def resolve_all(
    connection: Connection,
    action: Action,
    selection: Selection,
    *,
    reason: str = "",
    operator: str = "",
    dry_run: bool = False,
    expected: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Answer]:
    """Act on all open messages of the selection that are in a state for it; its states and limit are ignored.

    The order is that of partitions and offsets. A dry run lists the messages and writes nothing. `expected` is their
    number in a dry run: FinishedError is raised if it differs now, before anything is written. Other errors are those
    of `resolve`. Errors after the first command was written are in the answers.
    """
    if selection.partition is not None:
        connection.require_partition(selection.partition)
    if not dry_run:
        reason, operator = check_words(reason, operator)
    wanted = replace(selection, states=_STATES[action])
    views = {view.partition: view for view in read_views(connection)}
    now = time.time_ns() // 1_000_000
    problem_of = GroupStates(connection).problem_of
    found = {
        partition: [message for message in view.messages() if cause_if(wanted, message, now, problem_of) is not None]
        for partition, view in views.items()
    }
    if dry_run:
        return _in_order(foretell(action, [message for here in found.values() for message in here]))
    number = sum(map(len, found.values()))
    if expected is not None and number != expected:
        raise FinishedError(
            f"the selection has {counted(number, 'message')}, not {expected:,}: look again. Nothing was written"
        )
    return _carry_out(connection, action, views, found, reason, operator, timeout_s)


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

    A dry run lists the messages and writes nothing. Errors are those of `resolve_all`.
    """
    if not is_group(group):
        raise UsageError(f"{group[:40]!r} cannot be a producer group: 1 to 200 characters of A-Z a-z 0-9 . _ -")
    return resolve_all(
        connection,
        Action.RESUME,
        Selection(group=group),
        reason=reason,
        operator=operator,
        dry_run=dry_run,
        timeout_s=timeout_s,
    )


def _carry_out(
    connection: Connection,
    action: Action,
    views: Mapping[int, PartitionView],
    found: Mapping[int, Sequence[OpenMessage]],
    reason: str,
    operator: str,
    timeout_s: float,
) -> list[Answer]:
    work = {
        partition: sort_out(action, with_losses(connection, action, partition, messages))
        for partition, messages in found.items()
    }
    deadline = Deadline(timeout_s)
    answers: list[Answer] = []
    written = False
    for partition, (able, refused) in work.items():
        answers += refused
        for batch in batches(able):
            try:
                answers += act_on_batch(connection, action, views[partition], batch, reason, operator, deadline)
            except TxBridgeError as error:
                if not written:
                    raise
                answers += [Answer(message, Result.NOT_KNOWN, str(error)) for message in batch]
            written = True
    return _in_order(answers)


def _in_order(answers: Iterable[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda answer: (answer.message.partition, answer.message.half_offset))
