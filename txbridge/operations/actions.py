"""What a person can do with open messages: what it would do, the END record that does it, and what became of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from txbridge.core.end_record import MAX_ENTRIES, Decision, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.operations.connection import Connection
from txbridge.operations.end_writer import write_end
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

#: A worker that has died is noticed after its session (6 s), and the take-over of its partitions takes some seconds
#: more; a worker that is well applies an END within milliseconds.
DEFAULT_TIMEOUT_S = 30.0

_Refusal = tuple[Result, str] | None
_Judge = Callable[[OpenMessage, int, Sequence[Command], Sequence[Outcome], HalfEntry | None], Answer]


class Action(Enum):
    """What can be done with open messages by hand."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESUME = "resume"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an action is written, and what is said of it before and after."""

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
    """The answer when the action would have no effect, as far as the topics tell already; None when it would."""
    refusal = _KINDS[action].refuse(message)
    return None if refusal is None else Answer(message, *refusal)


def sort_out(action: Action, messages: Iterable[OpenMessage]) -> tuple[list[OpenMessage], list[Answer]]:
    """Those on which the action would have an effect, and the answers about the others."""
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
    """What the action would do to each of these, as far as the topics tell already. Nothing is written."""
    kind = _KINDS[action]
    detail = f"{kind.foretold}; nothing was written"
    return [refuse(action, message) or Answer(message, kind.would, detail) for message in messages]


def batches(messages: Sequence[OpenMessage]) -> Iterable[list[OpenMessage]]:
    """Of one group each, of as many as an END record may hold, in the order that they have."""
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
    timeout_s: float,
    deadline: Deadline | None = None,
) -> list[Answer]:
    """One END record about these messages of one partition and group, and what became of each.

    It waits for the worker until `deadline`, else for `timeout_s` after the record is stored.
    Raises as `write_end`; once the record is stored, nothing.
    """
    kind = _KINDS[action]
    end_offset = write_end(connection, batch, kind.decision, kind.source, reason, operator)
    offsets = [message.half_offset for message in batch]
    try:
        applied = wait_applied(connection, view, end_offset, offsets, deadline or Deadline(timeout_s))
    except TxBridgeError as error:
        return [Answer(message, Result.STORED, _lost_sight(end_offset, error), end_offset) for message in batch]
    if applied is None:
        detail = _stored(view, end_offset, timeout_s)
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
    """What to say when a command is stored, but what became of it cannot be read: it must not look like a failure."""
    return (
        f"stored at END offset {end_offset}, but what became of it could not be learnt: {error}. Look with "
        f"`txbridge pending` later; do not repeat it"
    )


def _stored(view: PartitionView, end_offset: int, timeout_s: float) -> str:
    """What to say when no worker has applied a command in time, with what was odd in the topics: it may be why."""
    text = (
        f"stored at END offset {end_offset} of partition {view.partition}, but no worker has applied it within "
        f"{timeout_s:g} s: no worker alive yet, or this partition stands still. It will be applied as soon as "
        f"one serves it; do not repeat it"
    )
    return ". ".join([text, *view.warnings])
