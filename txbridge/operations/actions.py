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
from txbridge.operations.view import DecisionCommand, foresee, stored_command

_SEE_LOG = "the worker refused it; its log says why (event end_refused)"
_LOST_BODY = "the half topic no longer has its body"


class Action(Enum):
    """What an operator can do with a message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESUME = "resume"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class ActionRule:
    """The END record of an action, the states of the messages that it is for, and the result of its dry run."""

    decision: Decision
    source: Source
    states: frozenset[TransactionState]
    would: Result
    forecast: str


_PENDING = frozenset({TransactionState.PENDING})
_DISCARDED = frozenset({TransactionState.DISCARDED})
_COMMITTED = frozenset({TransactionState.HELD, TransactionState.SCHEDULED})

RULES = {
    Action.COMMIT: ActionRule(Decision.COMMIT, Source.OPERATOR, _PENDING, Result.WOULD_COMMIT, "committed"),
    Action.ROLLBACK: ActionRule(Decision.ROLLBACK, Source.OPERATOR, _PENDING, Result.WOULD_ROLL_BACK, "rolled back"),
    Action.RESUME: ActionRule(Decision.UNKNOWN, Source.RESUME, _DISCARDED, Result.WOULD_RESUME, "resumed"),
    Action.ABANDON: ActionRule(Decision.UNKNOWN, Source.ABANDON, _COMMITTED, Result.WOULD_ABANDON, "abandoned"),
}


def foretell(action: Action, message: OpenMessage) -> Answer:
    """The effect that the action would have, as far as the topics show. Nothing is written."""
    rule, more = RULES[action], ""
    if action is Action.ABANDON:
        body = _LOST_BODY if message.gone else f"{message.size} bytes go to the discard topic"
        is_held = message.state is TransactionState.HELD
        why = f"It cannot be delivered: {message.error}" if is_held else "Its time has not come"
        more = f"; {body}. {f'{message.progress}. ' if message.progress else ''}{why}"
    forecast = Answer(message, rule.would, f"would be {rule.forecast}{more}. Nothing was written")
    return refuse(action, message) or forecast


def refuse(action: Action, message: OpenMessage) -> Answer | None:
    """The answer when the action would have no effect, as far as the topics show; None when it would have one."""
    found = _reason_against(action, message)
    return None if found is None else Answer(message, found[0], f"{found[1]}. Nothing was written")


def _reason_against(action: Action, message: OpenMessage) -> tuple[Result, str] | None:
    state, fits = message.state, message.state in RULES[action].states
    if message.stored is not None and (fits or action in {Action.COMMIT, Action.ROLLBACK}):
        result = Result.STORED if action is Action.RESUME else Result.REFUSED
        return result, f"another command came first: {message.stored}, which no worker has applied yet"
    if fits:
        if not message.gone or action not in {Action.COMMIT, Action.RESUME}:
            return None
        copy = ""
        if action is Action.RESUME:
            copy = f". Its copy is in the discard topic at {':'.join(map(str, message.discarded_at or ('?', '?')))}"
        return Result.REFUSED, f"{_LOST_BODY} (retention), so it cannot be delivered{copy}"
    if action is Action.ABANDON:
        return Result.REFUSED, f"it is {state.value}: only a held or scheduled message can be abandoned"
    if action is Action.RESUME:
        if message.resumed is not None:
            return Result.ALREADY_RESUMED, f"it was resumed before and is {state.value}"
        return Result.REFUSED, f"it is {state.value}, not discarded"
    if state is TransactionState.DISCARDED:
        return Result.REFUSED, f"it was discarded ({message.reason}): resume it first, then decide"
    if state is TransactionState.HELD:
        why, again = f"cannot be delivered: {message.error}", ". The worker keeps trying"
    else:
        why, again = "is delivered when its time comes", ""
    remedy = again if action is Action.COMMIT else ". A commit cannot be undone, but the message can be abandoned"
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
    foreseen = foresee(message, commands)
    own = next((one for one in foreseen if one.command.end_offset == end_offset), None)
    earlier = next((one for one in foreseen if one.takes_effect and one.command.end_offset < end_offset), None)
    has_effect = own is not None and own.refused is None
    first = None if earlier is None else f"another command came first: {stored_command(earlier.command)}"
    result, detail = _outcome(action, message, first, outcomes, parked, has_effect=has_effect)
    return Answer(message, result, detail, end_offset)


def _outcome(
    action: Action,
    message: OpenMessage,
    first: str | None,
    outcomes: Sequence[Outcome],
    parked: HalfEntry | None,
    *,
    has_effect: bool,
) -> tuple[Result, str]:
    last = outcomes[-1] if outcomes else None
    state = None if parked is None else parked.state
    if action is Action.ABANDON and last is Outcome.ABANDON:
        what = "what was not delivered before" if message.progress else "it"
        return Result.ABANDONED, f"abandoned: {what} will not be delivered. A copy is in the discard topic"
    if action is Action.ABANDON and last is Outcome.COMMIT:
        return Result.REFUSED, f"it was delivered to {message.real_topic} before the command was applied"
    if action is Action.ABANDON or not has_effect:
        if first is not None and action is Action.RESUME:
            return Result.ALREADY_RESUMED, f"{first}. This one had no effect"
        return Result.REFUSED, first or _SEE_LOG
    if action is Action.RESUME:
        if parked is not None and parked.resumed not in {None, message.resumed}:
            return Result.RESUMED, "resumed: it is checked again, starting with check 1"
        return (Result.RESUMED, f"resumed, and finished since: {last.value}") if last else (Result.REFUSED, _SEE_LOG)
    if action is Action.COMMIT and last is Outcome.COMMIT:
        return Result.COMMITTED, f"committed and delivered to {message.real_topic}"
    if action is Action.ROLLBACK and last is Outcome.ROLLBACK:
        return Result.ROLLED_BACK, "rolled back"
    if parked is not None and state is TransactionState.HELD:
        return Result.HELD, f"committed, but it cannot be delivered yet; the worker keeps trying: {parked.error}"
    if state is TransactionState.SCHEDULED:
        return Result.SCHEDULED, "committed; it is delivered when its time comes"
    if last is Outcome.DISCARD or state is TransactionState.DISCARDED:
        return Result.REFUSED, "it was discarded before the decision came: resume it first, then decide"
    return Result.REFUSED, _SEE_LOG
