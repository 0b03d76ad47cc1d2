"""Actions of a person on open messages: the END record of each, whether it would have an effect, and its result. Pure.

The worker is not asked. END holds the earlier commands, the table of transitions tells which of them take effect, and
OP and OFFSET hold the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from txbridge.core.decision_record import Decision, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome, TransactionState
from txbridge.operations.model import Answer, OpenMessage, Result
from txbridge.operations.view import DecisionCommand, Foreseen, foresee, stored_command

_SEE_LOG = "the worker refused it; its log says why (event end_refused)"


class Action(Enum):
    """Actions on open messages by hand."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESUME = "resume"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class ActionRule:
    """The END record of an action, the states of the messages that it is for, and its forecast."""

    decision: Decision
    source: Source
    states: frozenset[TransactionState]
    would: Result
    forecast: str


_PENDING = frozenset({TransactionState.PENDING})

RULES = {
    Action.COMMIT: ActionRule(Decision.COMMIT, Source.OPERATOR, _PENDING, Result.WOULD_COMMIT, "would be committed"),
    Action.ROLLBACK: ActionRule(
        Decision.ROLLBACK, Source.OPERATOR, _PENDING, Result.WOULD_ROLL_BACK, "would be rolled back"
    ),
    Action.RESUME: ActionRule(
        Decision.UNKNOWN,
        Source.RESUME,
        frozenset({TransactionState.DISCARDED}),
        Result.WOULD_RESUME,
        "would be resumed",
    ),
    Action.ABANDON: ActionRule(
        Decision.UNKNOWN,
        Source.ABANDON,
        frozenset({TransactionState.HELD, TransactionState.SCHEDULED}),
        Result.WOULD_ABANDON,
        "would be given up, and never be delivered",
    ),
}


def foretell(action: Action, message: OpenMessage) -> Answer:
    """The effect that the action would have, as far as the topics show. Nothing is written."""
    rule = RULES[action]
    return refuse(action, message) or Answer(message, rule.would, f"{rule.forecast}; nothing was written")


def refuse(action: Action, message: OpenMessage) -> Answer | None:
    """The answer when the action would have no effect, as far as the topics show; None when it would have one."""
    found = _reason_against(action, message)
    return None if found is None else Answer(message, found[0], f"{found[1]}. Nothing was written")


def _reason_against(action: Action, message: OpenMessage) -> tuple[Result, str] | None:
    state, fits = message.state, message.state in RULES[action].states
    is_decision = action in {Action.COMMIT, Action.ROLLBACK}
    if message.stored is not None and (fits or is_decision):
        result = Result.STORED if action is Action.RESUME else Result.REFUSED
        return result, f"somebody was first: {message.stored}, which no worker has applied yet"
    if fits:
        if not message.gone:
            return None
        match action:
            case Action.COMMIT:
                return (
                    Result.REFUSED,
                    "the half topic no longer has its body (retention), so that it cannot be delivered",
                )
            case Action.RESUME:
                copy = ":".join(map(str, message.discarded_at or ("?", "?")))
                return Result.REFUSED, (
                    "the half topic no longer has its body (retention), so that it could not be delivered any more. "
                    f"Its copy lies in the discard topic at {copy}"
                )
        return None
    if action is Action.ABANDON:
        return Result.REFUSED, (
            f"it is not held but {state.value}: only a committed message that cannot be delivered, or whose time has "
            f"not come, is abandoned"
        )
    if action is Action.RESUME:
        if message.resumed is not None:
            return Result.ALREADY_RESUMED, f"it was resumed before and is {state.value}"
        return Result.REFUSED, f"it is not discarded but {state.value}"
    if state is TransactionState.DISCARDED:
        return Result.REFUSED, (
            f"it was discarded ({message.reason}), and a decision has no effect then: resume it first, then decide"
        )
    if state is TransactionState.HELD:
        why, again = f"cannot be delivered: {message.error}", ". The worker tries again until it can"
    else:
        why, again = "is delivered when its time comes", ""
    remedy = again if action is Action.COMMIT else ". That cannot be undone; it can be abandoned"
    return Result.REFUSED, f"it is committed already (END offset {message.decided}) and {why}{remedy}"


def outcome_of(
    action: Action,
    message: OpenMessage,
    end_offset: int,
    commands: Sequence[DecisionCommand],
    outcomes: Sequence[Outcome],
    parked: HalfEntry | None,
) -> Answer:
    """The result of an action whose END record, at `end_offset`, has been applied.

    `message` is as it was before. `commands` are all commands about it from then up to this one. `outcomes` are its
    outcomes in OP since then. `parked` is its entry in OFFSET now.
    """
    result, detail = _outcome(action, message, _split(message, commands, end_offset), outcomes, parked)
    return Answer(message, result, detail, end_offset)


def _outcome(
    action: Action,
    message: OpenMessage,
    foreseen: tuple[Foreseen | None, Foreseen | None],
    outcomes: Sequence[Outcome],
    parked: HalfEntry | None,
) -> tuple[Result, str]:
    earlier, own = foreseen
    last = outcomes[-1] if outcomes else None
    state = None if parked is None else parked.state
    if action is Action.ABANDON and last is Outcome.ABANDON:
        detail = "abandoned: it will not be delivered. A copy of what is left of it lies in the discard topic"
        return Result.ABANDONED, detail
    if action is Action.ABANDON and last is Outcome.COMMIT:
        detail = f"it was delivered to {message.real_topic} before the command was applied, which had no effect"
        return Result.REFUSED, detail
    if own is None or own.refused is not None or action is Action.ABANDON:
        if earlier is None:
            return Result.REFUSED, _SEE_LOG
        first = f"somebody was first: {stored_command(earlier.command)}"
        if action is Action.RESUME:
            return Result.ALREADY_RESUMED, f"{first}. This one had no effect"
        return Result.REFUSED, first
    if action is Action.RESUME:
        if parked is not None and parked.resumed not in {None, message.resumed}:
            return Result.RESUMED, "resumed: it is checked again, from check 1 on"
        return (Result.RESUMED, f"resumed, and since finished: {last.value}") if last else (Result.REFUSED, _SEE_LOG)
    if action is Action.COMMIT and last is Outcome.COMMIT:
        return Result.COMMITTED, f"committed and delivered to {message.real_topic}"
    if action is Action.ROLLBACK and last is Outcome.ROLLBACK:
        return Result.ROLLED_BACK, "rolled back"
    if parked is not None and state is TransactionState.HELD:
        detail = f"committed, but it cannot be delivered yet, and the worker goes on trying: {parked.error}"
        return Result.HELD, detail
    if state is TransactionState.SCHEDULED:
        return Result.SCHEDULED, "committed; it is delivered when its time comes"
    if last is Outcome.DISCARD or state is TransactionState.DISCARDED:
        return Result.REFUSED, "it was discarded before the decision came: resume it first, then decide"
    return Result.REFUSED, _SEE_LOG


def _split(
    message: OpenMessage, commands: Sequence[DecisionCommand], end_offset: int
) -> tuple[Foreseen | None, Foreseen | None]:
    """The first command that had an effect before ours, and ours."""
    foreseen = foresee(message, commands)
    own = next((one for one in foreseen if one.command.end_offset == end_offset), None)
    earlier = next((one for one in foreseen if one.takes_effect and one.command.end_offset < end_offset), None)
    return earlier, own
