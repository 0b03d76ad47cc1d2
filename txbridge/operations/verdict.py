"""Results of commands, derived from the records that the worker wrote. Pure.

The worker is not asked. END holds the earlier commands, the table of transitions tells which of them take effect, and
OP and OFFSET hold the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from txbridge.core.decision_record import Decision
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome, TransactionState
from txbridge.operations.model import Answer, OpenMessage, Result
from txbridge.operations.view import Command, Foreseen, foresee, stored_command

_SEE_LOG = "the worker refused it; its log says why (event end_refused)"


def refuse_decision(message: OpenMessage, decision: Decision) -> str | None:
    """The reason why a decision would have no effect on this message, as far as the topics show; None without one."""
    if message.stored is not None:
        return f"somebody was first: {message.stored}, which no worker has applied yet. Nothing was written"
    if message.state is TransactionState.HELD:
        decided = f"it is committed already (END offset {message.decided}) and cannot be delivered: {message.error}"
        again = "The worker tries again until it can"
        remedy = again if decision is Decision.COMMIT else "That cannot be undone; it can be abandoned"
        return f"{decided}. {remedy}. Nothing was written"
    if message.state is TransactionState.SCHEDULED:
        decided = f"it is committed already (END offset {message.decided}), and is delivered when its time comes"
        remedy = "" if decision is Decision.COMMIT else " That cannot be undone; it can be abandoned."
        return f"{decided}.{remedy} Nothing was written"
    if message.state is TransactionState.DISCARDED:
        return (
            f"it was discarded ({message.reason}), and a decision has no effect then: resume it first, then decide. "
            f"Nothing was written"
        )
    if message.gone and decision is Decision.COMMIT:
        return "its body is gone from the half topic (retention), so that it cannot be delivered. Nothing was written"
    return None


def judge_decision(
    message: OpenMessage,
    decision: Decision,
    end_offset: int,
    commands: Sequence[Command],
    outcomes: Sequence[Outcome],
    parked: HalfEntry | None,
) -> Answer:
    """The result of a decision at `end_offset` of END that has been applied.

    `message` is as it was before. `commands` are all commands about it from then up to the decision itself. `outcomes`
    are its outcomes in OP since then. `parked` is its entry in OFFSET now.
    """
    earlier, own = _split(message, commands, end_offset)
    last = outcomes[-1] if outcomes else None
    result, detail = Result.REFUSED, _SEE_LOG
    if own is None or own.refused is not None:
        if earlier is not None:
            detail = f"somebody was first: {stored_command(earlier.command)}"
    elif last is Outcome.COMMIT and decision is Decision.COMMIT:
        result, detail = Result.COMMITTED, f"committed and delivered to {message.real_topic}"
    elif last is Outcome.ROLLBACK and decision is Decision.ROLLBACK:
        result, detail = Result.ROLLED_BACK, "rolled back"
    elif parked is not None and parked.state is TransactionState.HELD:
        result = Result.HELD
        detail = f"committed, but it cannot be delivered yet, and the worker goes on trying: {parked.error}"
    elif parked is not None and parked.state is TransactionState.SCHEDULED:
        result, detail = Result.SCHEDULED, "committed; it is delivered when its time comes"
    elif last is Outcome.DISCARD or (parked is not None and parked.state is TransactionState.DISCARDED):
        detail = "it was discarded before the decision came: resume it first, then decide"
    return Answer(message, result, detail, end_offset)


def refuse_abandon(message: OpenMessage) -> str | None:
    """The reason not to abandon this message; None when it can be abandoned."""
    if message.stored is not None and message.state.is_committed:
        return f"somebody was first: {message.stored}, which no worker has applied yet. Nothing was written"
    if message.state.is_committed:
        return None
    return (
        f"it is not held but {message.state.value}: only a committed message that cannot be delivered, or whose time "
        f"has not come, is abandoned. Nothing was written"
    )


def judge_abandon(
    message: OpenMessage,
    end_offset: int,
    commands: Sequence[Command],
    outcomes: Sequence[Outcome],
) -> Answer:
    """The result of an abandon; the arguments are those of `judge_decision`."""
    last = outcomes[-1] if outcomes else None
    if last is Outcome.ABANDON:
        detail = "abandoned: it will not be delivered. A copy of what is left of it lies in the discard topic"
        return Answer(message, Result.ABANDONED, detail, end_offset)
    if last is Outcome.COMMIT:
        detail = f"it was delivered to {message.real_topic} before the command was applied, which had no effect"
        return Answer(message, Result.REFUSED, detail, end_offset)
    earlier, _ = _split(message, commands, end_offset)
    detail = _SEE_LOG if earlier is None else f"somebody was first: {stored_command(earlier.command)}"
    return Answer(message, Result.REFUSED, detail, end_offset)


def refuse_resume(message: OpenMessage) -> tuple[Result, str] | None:
    """The result and the reason not to resume this message; None when it can be resumed."""
    if message.state is TransactionState.DISCARDED:
        if message.stored is not None:
            return (
                Result.STORED,
                f"somebody was first: {message.stored}, which no worker has applied yet. Nothing was written",
            )
        if message.gone:
            return Result.REFUSED, (
                "its body is gone from the half topic (retention), so that it could not be delivered any more. Its "
                f"copy lies in the discard topic at {_place(message)}. Nothing was written"
            )
        return None
    if message.resumed is not None:
        return Result.ALREADY_RESUMED, f"it was resumed before and is {message.state.value}. Nothing was written"
    return Result.REFUSED, f"it is not discarded but {message.state.value}. Nothing was written"


def judge_resume(
    message: OpenMessage,
    end_offset: int,
    commands: Sequence[Command],
    outcomes: Sequence[Outcome],
    parked: HalfEntry | None,
) -> Answer:
    """The result of a resume; the arguments are those of `judge_decision`."""
    earlier, own = _split(message, commands, end_offset)
    if own is None or own.refused is not None:
        if earlier is None:
            return Answer(message, Result.REFUSED, _SEE_LOG, end_offset)
        detail = f"somebody was first: {stored_command(earlier.command)}. This one had no effect"
        return Answer(message, Result.ALREADY_RESUMED, detail, end_offset)
    if parked is not None and parked.resumed not in {None, message.resumed}:
        return Answer(message, Result.RESUMED, "resumed: it is checked again, from check 1 on", end_offset)
    if outcomes:
        return Answer(message, Result.RESUMED, f"resumed, and since finished: {outcomes[-1].value}", end_offset)
    return Answer(message, Result.REFUSED, _SEE_LOG, end_offset)


def _split(
    message: OpenMessage, commands: Sequence[Command], end_offset: int
) -> tuple[Foreseen | None, Foreseen | None]:
    """The first command that had an effect before ours, and ours."""
    foreseen = foresee(message, commands)
    own = next((one for one in foreseen if one.command.end_offset == end_offset), None)
    earlier = next((one for one in foreseen if one.takes_effect and one.command.end_offset < end_offset), None)
    return earlier, own


def _place(message: OpenMessage) -> str:
    return ":".join(map(str, message.discarded_at or ("?", "?")))
