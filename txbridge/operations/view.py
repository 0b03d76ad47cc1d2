"""View of a partition that is not owned, and the actions of a person on what it shows. Pure: records in, messages out.

The worker is not asked. END holds the earlier commands, the table of transitions tells which of them take effect, and
OP and OFFSET hold the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import TRANSITIONS, Outcome, RefusalReason, TransactionState, event_of
from txbridge.operations.model import Answer, NextStep, OpenMessage, Result, StoredCommand


@dataclass(frozen=True, slots=True)
class DecisionCommand:
    """One entry of an END record, with the fields of its record."""

    end_offset: int
    group: str
    source: Source
    entry: DecisionEntry
    client_id: str | None = None


def commands_of(record: DecisionRecord) -> Iterator[DecisionCommand]:
    # A question is about no message at the offset that it names.
    for entry in record.entries if record.source is not Source.FIND else ():
        yield DecisionCommand(record.offset, record.group, record.source, entry, record.client_id)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The effect of a command: the states before and after it, and the reason when it is refused."""

    command: DecisionCommand
    before: TransactionState
    after: TransactionState
    refused: RefusalReason | None

    @property
    def takes_effect(self) -> bool:
        return self.after is not self.before


def foresee(message: OpenMessage, commands: Iterable[DecisionCommand]) -> list[Foreseen]:
    """The effects that the worker will give to these commands about a message, in their order.

    Only time can change them: a message that is discarded meanwhile accepts no decision any more.
    """
    state = message.state
    found = []
    for command in commands:
        before, refused = state, None
        if command.entry.transaction_id != message.transaction_id:
            refused = RefusalReason.WRONG_TRANSACTION_ID
        elif command.group != message.group:
            refused = RefusalReason.WRONG_GROUP
        else:
            event = event_of(command.entry.decision, command.source)
            transition = TRANSITIONS[state, event]
            state, refused = transition.state, transition.refused
        found.append(Foreseen(command, before, state, refused))
    return found


@dataclass(slots=True)
class PartitionView:
    """All open messages of one partition, and where its logs stood when they were read."""

    offset_topic: OffsetTopic
    policy: CheckPolicy
    #: Log start and end of HALF when reading began.
    half_start: int
    half_end: int
    #: OP offset up to which its records were taken in.
    op_position: int = 0
    #: Next END offset that a worker will apply, and index of the first entry there that is not applied yet.
    next_end: int = 0
    next_entry: int = 0
    warnings: list[str] = field(default_factory=list)
    _unparked: dict[int, HalfEntry] = field(default_factory=dict)
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _commands: dict[int, list[DecisionCommand]] = field(default_factory=dict)

    @property
    def partition(self) -> int:
        return self.offset_topic.partition

    @property
    def watermark(self) -> int:
        """The low watermark: below it only parked messages are open."""
        return self.half_start if self.offset_topic.checkpoint is None else self.offset_topic.checkpoint.half

    def rest_of(self, record: DecisionRecord) -> DecisionRecord:
        """The record without the entries that are applied already."""
        if record.offset != self.next_end or not self.next_entry:
            return record
        return replace(record, entries=record.entries[self.next_entry :])

    # --- records, in this order: OFFSET, OP, HALF, END ---------------------------------------------------------------

    def take_op(self, outcome: Outcome, half_offsets: Iterable[int]) -> None:
        self._outcomes.update((offset, outcome) for offset in half_offsets if offset >= self.watermark)

    def take_half(self, half: HalfMessage) -> None:
        """Take in one half message at or above the low watermark."""
        # A parked entry has more details, for a discarded message also more than OP.
        if half.offset not in self._outcomes and half.offset not in self.offset_topic.parked:
            self._unparked[half.offset] = HalfEntry.of_half(half, self.policy.first_check(half.born, half.immunity))

    def take_end(self, record: DecisionRecord) -> None:
        """Take in one END record that no worker has applied yet."""
        for command in commands_of(record):
            # Commands about finished messages, or about no message at all, will be refused.
            offset = command.entry.half_offset
            if offset in self._unparked or offset in self.offset_topic.parked:
                self._commands.setdefault(offset, []).append(command)

    def open_messages(self) -> Iterator[OpenMessage]:
        for offset in sorted({*self.offset_topic.parked, *self._unparked}):
            message = self.find_open(offset)
            assert message is not None
            yield message

    def find_open(self, half_offset: int) -> OpenMessage | None:
        entry = self.offset_topic.parked.get(half_offset, self._unparked.get(half_offset))
        if entry is None:
            return None
        message = open_message(entry, self.partition, self.policy, self.half_start)
        for foreseen in foresee(message, self._commands.get(half_offset, ())):
            if foreseen.takes_effect:
                return replace(message, stored=stored_command(foreseen.command))
        return message

    def outcome_of(self, half_offset: int) -> Outcome | None:
        """The outcome of a message at or above the low watermark; None when it is open, older, or no half message."""
        return self._outcomes.get(half_offset)


def open_message(entry: HalfEntry, partition: int, policy: CheckPolicy, half_start: int = 0) -> OpenMessage:
    """The open message of an entry. `half_start` is the log start of HALF: an older message has lost its body."""
    step, due = _next_step(entry, policy)
    return OpenMessage(
        partition=partition,
        half_offset=entry.offset,
        transaction_id=entry.transaction_id,
        group=entry.group,
        real_topic=entry.real_topic,
        state=entry.state,
        born=entry.born,
        size=entry.size,
        checks=entry.checks,
        next_step=step,
        next_due=due,
        parked=entry.parked,
        error=entry.error,
        decided=entry.decided,
        reason=entry.reason,
        discarded_at=entry.discarded_at,
        resumed=entry.resumed,
        deliver_at=entry.deliver_at,
        messages=entry.messages,
        delivered=entry.delivered or 0,
        gone=entry.offset < half_start,
    )


def _next_step(entry: HalfEntry, policy: CheckPolicy) -> tuple[NextStep, int | None]:
    """The next step and its due time, for a pending message by the worker's own policy."""
    match entry.state:
        case TransactionState.DISCARDED:
            return NextStep.LAPSE, entry.next_due
        case TransactionState.HELD:
            # Attempts after the first are not recorded: they take place once a minute or sooner.
            return NextStep.RETRY, None
        case TransactionState.SCHEDULED:
            return NextStep.DELIVER, entry.next_due
    expires = policy.expires(entry.since)
    if expires <= entry.next_due or policy.is_exhausted(entry.checks):
        return NextStep.DISCARD, min(entry.next_due, expires)
    return NextStep.CHECK, entry.next_due


def stored_command(command: DecisionCommand) -> StoredCommand:
    return StoredCommand(command.end_offset, command.entry.decision, command.source, command.client_id)


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
