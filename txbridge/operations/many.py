"""One command for many open messages: first what it would do, then that, and to the same messages."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from txbridge.core.end_record import MAX_ENTRIES, Decision, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome, TransactionState
from txbridge.errors import TxBridgeError
from txbridge.operations.connection import Connection
from txbridge.operations.details import with_keys
from txbridge.operations.end_writer import check_words, write_end
from txbridge.operations.model import Answer, OpenMessage, Result
from txbridge.operations.reading import read_view, wait_applied
from txbridge.operations.resolve_message import DEFAULT_TIMEOUT_S, lost_sight, stored_detail
from txbridge.operations.verdict import (
    judge_abandon,
    judge_decision,
    judge_resume,
    refuse_abandon,
    refuse_decision,
    refuse_resume,
)
from txbridge.operations.view import Command, PartitionView

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


def foretell(action: Action, messages: Iterable[OpenMessage]) -> list[Answer]:
    """What the action would do to each of these, as far as the topics tell already. Nothing is written."""
    kind = _KINDS[action]
    answers = []
    for message in messages:
        refusal = kind.refuse(message)
        foretold = (kind.would, f"{kind.foretold}; nothing was written")
        answers.append(Answer(message, *(foretold if refusal is None else refusal)))
    return answers


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
    deadline = time.monotonic() + timeout_s
    answers: list[Answer] = []
    written = False
    for partition, (able, refused) in work.items():
        answers += refused
        for batch in _batches(able):
            try:
                answers += act_on_batch(
                    connection, action, views[partition], batch, reason, operator, deadline, timeout_s
                )
            except TxBridgeError as error:
                if not written:
                    raise
                answers += [Answer(message, Result.NOT_KNOWN, str(error)) for message in batch]
            written = True
    return sorted(answers, key=lambda answer: (answer.message.partition, answer.message.half_offset))


def act_on_batch(
    connection: Connection,
    action: Action,
    view: PartitionView,
    batch: Sequence[OpenMessage],
    reason: str,
    operator: str,
    deadline: float,
    timeout_s: float,
) -> list[Answer]:
    """One END record about these messages of one partition and group, and what became of each.

    Raises as `write_end`; once the record is stored, nothing.
    """
    kind = _KINDS[action]
    end_offset = write_end(connection, batch, kind.decision, kind.source, reason, operator)
    offsets = [message.half_offset for message in batch]
    applied, trouble = None, None
    try:
        applied = wait_applied(connection, view, end_offset, offsets, max(0.0, deadline - time.monotonic()))
    except TxBridgeError as error:
        trouble = lost_sight(end_offset, error)
    if applied is None:
        detail = trouble or stored_detail(view, end_offset, timeout_s)
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
    foretold = foretell(action, able)
    would = _KINDS[action].would
    refused += [answer for answer in foretold if answer.result is not would]
    return [answer.message for answer in foretold if answer.result is would], refused


def _batches(messages: Sequence[OpenMessage]) -> Iterable[list[OpenMessage]]:
    """Of one group each, of as many as an END record may hold, in the order of offsets."""
    groups: dict[str, list[OpenMessage]] = defaultdict(list)
    for message in messages:
        groups[message.group].append(message)
    for found in groups.values():
        for start in range(0, len(found), MAX_ENTRIES):
            yield found[start : start + MAX_ENTRIES]
