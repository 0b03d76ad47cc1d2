"""Commands for one open message, and for many after a dry run: commit, rollback, resume and abandon."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from txbridge.core.decision_record import MAX_ENTRIES, Decision
from txbridge.core.names import is_group
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError, UsageError
from txbridge.operations.actions import RULES, Action, foretell, outcome_of, refuse
from txbridge.operations.address import FinishedError, find_target
from txbridge.operations.causes import cause_if
from txbridge.operations.connection import Connection
from txbridge.operations.decision_writer import check_words, write_end
from txbridge.operations.details import with_keys
from txbridge.operations.group_states import GroupStates
from txbridge.operations.model import Answer, OpenMessage, Result, Selection
from txbridge.operations.reading import read_views, wait_applied
from txbridge.operations.view import PartitionView
from txbridge.text import counted

#: Wait for the worker (s). A dead worker is noticed after its session (6 s), and the take-over of its partitions takes
#: some more seconds. A healthy worker applies an END record within milliseconds.
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
    """Decide one open message by hand, wait until a worker has applied the decision, and return the result.

    `target` is `<partition>:<half offset>` or the whole transaction id; `id_prefix` guards against a mistyped offset.
    The first decision wins, no matter who made it. When the topics already show that another one has won, nothing is
    written. `timeout_s` bounds the wait for the worker. After it the result is STORED, and the command will still be
    applied.

    Before anything is written it raises UsageError, FinishedError, HangingTransactionError, KafkaUnreachableError and
    EnvironmentProblemError. It raises the last one also when Kafka did not acknowledge the command; the text tells.
    Later errors are in the answer.
    """
    if decision is Decision.UNKNOWN:
        raise UsageError("decide commit or rollback: unknown decides nothing")
    action = Action.COMMIT if decision is Decision.COMMIT else Action.ROLLBACK
    return act_on_one(connection, action, target, reason, operator, id_prefix, timeout_s)


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
    return act_on_one(connection, Action.RESUME, target, reason, operator, id_prefix, timeout_s)


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
        return act_on_one(connection, Action.ABANDON, target, reason, operator, id_prefix, timeout_s)
    _, message = find_target(connection, target, id_prefix)
    body = "the half topic no longer has its body" if message.gone else f"{message.size} bytes go to the discard topic"
    is_held = message.state is TransactionState.HELD
    why = f"It cannot be delivered: {message.error}" if is_held else "Its time has not come"
    detail = f"would be abandoned; {body}. {why}. Nothing was written"
    return refuse(Action.ABANDON, message) or Answer(message, Result.WOULD_ABANDON, detail)


def act_on_one(
    connection: Connection,
    action: Action,
    target: str,
    reason: str,
    operator: str,
    id_prefix: str | None,
    timeout_s: float,
) -> Answer:
    """Carry out an action on one message, as `resolve` does."""
    reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    [message] = _with_losses(connection, action, message.partition, [message])
    refused = refuse(action, message)
    if refused is not None:
        return refused
    [answer] = _act_on_batch(connection, action, view, [message], reason, operator, timeout_s)
    return answer


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
    wanted = replace(selection, states=RULES[action].states)
    now = time.time_ns() // 1_000_000
    problem_of = GroupStates(connection).problem_of
    found = [
        (view, [message for message in view.open_messages() if cause_if(wanted, message, now, problem_of) is not None])
        for view in read_views(connection)
    ]
    if dry_run:
        return [foretell(action, message) for _, messages in found for message in messages]
    number = sum(len(messages) for _, messages in found)
    if expected is not None and number != expected:
        raise FinishedError(
            f"the selection has {counted(number, 'message')}, not {expected:,}: look again. Nothing was written"
        )
    # All bodies are looked up before the first command is written.
    work = [(view, _with_losses(connection, action, view.partition, messages)) for view, messages in found]
    deadline = Deadline(timeout_s)
    answers: list[Answer] = []
    written = False
    for view, messages in work:
        refused = {message.half_offset: refuse(action, message) for message in messages}
        answers += [answer for answer in refused.values() if answer is not None]
        for batch in _batches(message for message in messages if refused[message.half_offset] is None):
            try:
                answers += _act_on_batch(connection, action, view, batch, reason, operator, deadline)
            except TxBridgeError as error:
                if not written:
                    raise
                answers += [Answer(message, Result.NOT_KNOWN, str(error)) for message in batch]
            written = True
    return sorted(answers, key=lambda answer: (answer.message.partition, answer.message.half_offset))


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


def _with_losses(
    connection: Connection, action: Action, partition: int, messages: Sequence[OpenMessage]
) -> list[OpenMessage]:
    """The same messages of one partition; before a commit, which needs the bodies, also whether these are gone.

    Raises as `read_view`.
    """
    pending = [message for message in messages if message.state is TransactionState.PENDING]
    if action is not Action.COMMIT or not pending:
        return [*messages]
    # The keys must not be kept longer than they are needed.
    looked_up = {one.half_offset: replace(one, key=None) for one in with_keys(connection, partition, pending)}
    return [looked_up.get(message.half_offset, message) for message in messages]


def _batches(messages: Iterable[OpenMessage]) -> Iterable[list[OpenMessage]]:
    """Batches of one group each, with as many messages as an END record may hold; their order stays."""
    groups: dict[str, list[OpenMessage]] = defaultdict(list)
    for message in messages:
        groups[message.group].append(message)
    for found in groups.values():
        for start in range(0, len(found), MAX_ENTRIES):
            yield found[start : start + MAX_ENTRIES]


def _act_on_batch(
    connection: Connection,
    action: Action,
    view: PartitionView,
    batch: Sequence[OpenMessage],
    reason: str,
    operator: str,
    limit: Deadline | float,
) -> list[Answer]:
    """Write one END record about these messages of one partition and group, and return the result of each.

    It waits for the worker until the deadline `limit`, or for `limit` seconds after the record is stored.
    Raises as `write_end`, but nothing once the record is stored: that must not look like a failure.
    """
    rule = RULES[action]
    end_offset = write_end(connection, batch, rule.decision, rule.source, reason, operator)
    offsets = [message.half_offset for message in batch]
    deadline = limit if isinstance(limit, Deadline) else Deadline(limit)
    seconds = deadline.left
    try:
        applied = wait_applied(connection, view, end_offset, offsets, deadline)
    except TxBridgeError as error:
        detail = (
            f"stored at END offset {end_offset}, but what became of it could not be learnt: {error}. Look with "
            f"`txbridge pending` later; do not repeat it"
        )
        return [Answer(message, Result.STORED, detail, end_offset) for message in batch]
    if applied is None:
        detail = (
            f"stored at END offset {end_offset} of partition {view.partition}, but no worker has applied it within "
            f"{round(seconds, 1):g} s: no worker alive yet, or this partition stands still. It will be applied as soon "
            f"as one serves it; do not repeat it"
        )
        # The view's warnings may be the reason.
        detail = ". ".join([detail, *view.warnings])
        return [Answer(message, Result.STORED, detail, end_offset) for message in batch]
    return [
        outcome_of(
            action,
            message,
            end_offset,
            applied.commands[message.half_offset],
            applied.outcomes[message.half_offset],
            view.offset_topic.parked.get(message.half_offset),
        )
        for message in batch
    ]
