"""View of a partition that is not owned, as its topics show it. Pure: records go in, open messages come out.

Everything is as of the last checkpoint: parked entries and checkpoint are written in one Kafka transaction, so that
they always fit together. Later END records have not been applied; the worker's own table of transitions tells their
effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import DecisionEntry, DecisionRecord, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import TRANSITIONS, Outcome, RefusalReason, TransactionState, event_of
from txbridge.operations.model import NextStep, OpenMessage, StoredCommand


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
            self._unparked[half.offset] = HalfEntry(
                offset=half.offset,
                transaction_id=half.transaction_id,
                group=half.group,
                real_topic=half.real_topic,
                born=half.born,
                size=half.size,
                next_due=self.policy.first_check(half.born, half.immunity),
                messages=half.messages or 1,
                deliver_at=half.deliver_at,
            )

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
