"""Actions of a person on open messages: their forecast, the END record that carries them out, and their results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from txbridge.core.decision_record import MAX_ENTRIES, Decision, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome, TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.operations.connection import Connection
from txbridge.operations.decision_writer import write_end
from txbridge.operations.details import with_keys
from txbridge.operations.model import Answer, OpenMessage, Result
from txbridge.operations.reading import wait_applied
from txbridge.operations.verdict import (
    judge_abandon,
    judge_decision,
    judge_resume,
    refuse_abandon,
    refuse_decision,
    refuse_resume,
)
from txbridge.operations.view import Command, PartitionView

#: Wait for the worker (s). A dead worker is noticed after its session (6 s), and the take-over of its partitions takes
#: some more seconds. A healthy worker applies an END record within milliseconds.
DEFAULT_TIMEOUT_S = 30.0

_Refusal = tuple[Result, str] | None
_Judge = Callable[[OpenMessage, int, Sequence[Command], Sequence[Outcome], HalfEntry | None], Answer]


class Action(Enum):
    """Actions on open messages by hand."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESUME = "resume"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class _Kind:
    """The END record of an action, and its answers before and after it is applied."""

    decision: Decision
    source: Source
    would: Result
    foretold: str
    refuse: Callable[[OpenMessage], _Refusal]
    judge: _Judge


def _decision(decision: Decision, would: Result, foretold: str) -> _Kind:
    def refuse(message: OpenMessage) -> _Refusal:
        why = refuse_decision(message, decision)
        return None if why is None else (Result.REFUSED, why)

    def judge(
        message: OpenMessage,
        end_offset: int,
        commands: Sequence[Command],
        outcomes: Sequence[Outcome],
        parked: HalfEntry | None,
    ) -> Answer:
        return judge_decision(message, decision, end_offset, commands, outcomes, parked)

    return _Kind(decision, Source.OPERATOR, would, foretold, refuse, judge)


def _refuse_abandon(message: OpenMessage) -> _Refusal:
    why = refuse_abandon(message)
    return None if why is None else (Result.REFUSED, why)


def _judge_abandon(
    message: OpenMessage,
    end_offset: int,
    commands: Sequence[Command],
    outcomes: Sequence[Outcome],
    _parked: HalfEntry | None,
) -> Answer:
    return judge_abandon(message, end_offset, commands, outcomes)


_KINDS = {
    Action.COMMIT: _decision(Decision.COMMIT, Result.WOULD_COMMIT, "would be committed"),
    Action.ROLLBACK: _decision(Decision.ROLLBACK, Result.WOULD_ROLL_BACK, "would be rolled back"),
    Action.RESUME: _Kind(
        Decision.UNKNOWN, Source.RESUME, Result.WOULD_RESUME, "would be resumed", refuse_resume, judge_resume
    ),
    Action.ABANDON: _Kind(
        Decision.UNKNOWN,
        Source.ABANDON,
        Result.WOULD_ABANDON,
        "would be given up, and never be delivered",
        _refuse_abandon,
        _judge_abandon,
    ),
}


def refuse(action: Action, message: OpenMessage) -> Answer | None:
    """The answer when the action would have no effect, as far as the topics show; None when it would have one."""
    refusal = _KINDS[action].refuse(message)
    return None if refusal is None else Answer(message, *refusal)


def with_losses(
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


def sort_out(action: Action, messages: Iterable[OpenMessage]) -> tuple[list[OpenMessage], list[Answer]]:
    """The messages on which the action would have an effect, and the answers about the others."""
    able: list[OpenMessage] = []
    refused: list[Answer] = []
    for message in messages:
        answer = refuse(action, message)
        if answer is None:
            able.append(message)
        else:
            refused.append(answer)
    return able, refused


def foretell(action: Action, messages: Iterable[OpenMessage]) -> list[Answer]:
    """The effect that the action would have on each message, as far as the topics show. Nothing is written."""
    kind = _KINDS[action]
    detail = f"{kind.foretold}; nothing was written"
    return [refuse(action, message) or Answer(message, kind.would, detail) for message in messages]


def batches(messages: Sequence[OpenMessage]) -> Iterable[list[OpenMessage]]:
    """Batches of one group each, with as many messages as an END record may hold; their order stays."""
    groups: dict[str, list[OpenMessage]] = defaultdict(list)
    for message in messages:
        groups[message.group].append(message)
    for found in groups.values():
        for start in range(0, len(found), MAX_ENTRIES):
            yield found[start : start + MAX_ENTRIES]


def act_on_batch(
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
    Raises as `write_end`, but nothing once the record is stored.
    """
    kind = _KINDS[action]
    end_offset = write_end(connection, batch, kind.decision, kind.source, reason, operator)
    offsets = [message.half_offset for message in batch]
    deadline = limit if isinstance(limit, Deadline) else Deadline(limit)
    seconds = deadline.left
    try:
        applied = wait_applied(connection, view, end_offset, offsets, deadline)
    except TxBridgeError as error:
        return [Answer(message, Result.STORED, _lost_sight(end_offset, error), end_offset) for message in batch]
    if applied is None:
        detail = _stored(view, end_offset, seconds)
        return [Answer(message, Result.STORED, detail, end_offset) for message in batch]
    return [
        kind.judge(
            message,
            end_offset,
            applied.commands[message.half_offset],
            applied.outcomes[message.half_offset],
            view.offset_topic.parked.get(message.half_offset),
        )
        for message in batch
    ]


def _lost_sight(end_offset: int, error: TxBridgeError) -> str:
    """The text about a command that is stored, but has no readable result: it must not look like a failure."""
    return (
        f"stored at END offset {end_offset}, but what became of it could not be learnt: {error}. Look with "
        f"`txbridge pending` later; do not repeat it"
    )


def _stored(view: PartitionView, end_offset: int, seconds: float) -> str:
    """The text about a command that was not applied in time, with the view's warnings, which may be the reason."""
    text = (
        f"stored at END offset {end_offset} of partition {view.partition}, but no worker has applied it within "
        f"{round(seconds, 1):g} s: no worker alive yet, or this partition stands still. It will be applied as soon as "
        f"one serves it; do not repeat it"
    )
    return ". ".join([text, *view.warnings])
