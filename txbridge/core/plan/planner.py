"""TurnPlanner: the plan of each turn of a partition. The shell looks, writes the plan to Kafka, and applies it.

A draft takes due entries out of the timers. Entries that it does not change go back at once. The others are scheduled
anew when Kafka has committed the draft, or go back when it is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from txbridge.core.decision_record import DecisionRecord, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.choice import ROUND_LIMIT, EndChoice, EndSlice, KnownSteps, Room, TransactionSize, Waiting
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import EXPIRED, MAX_CHECKS, InTurn, MalformedRecord, Obstacle
from txbridge.core.states import TransactionState


@dataclass(frozen=True, slots=True)
class DueRound:
    """What a turn may check and discard."""

    #: Time (ms) up to which checks, and up to which discards count as due. END is applied up to the high watermark that
    #: was read after that time. None: nothing may be discarded.
    as_of: int
    discard_as_of: int | None
    #: Producer groups with checks due that may be checked now.
    groups: list[str]
    #: Reason why a check topic does not take a message.
    obstacle: Obstacle
    most_checks: int
    most_discards: int
    #: Whether it is for a closed check topic, and must go apart from everything else.
    is_probe: bool


def deliver_due(
    draft: Draft, obstacle: Obstacle, obstacle_of_held: Obstacle, limit: int, max_bytes: int, room: Room | None
) -> None:
    """Deliver scheduled and held messages that are due, and forget discarded ones that cannot be resumed any more.

    `max_bytes` bounds the draft as a whole, `limit` the messages that are retried. Only a transaction that would be
    alone in the draft may be larger. A message without room goes back unchanged, and nothing is written about it. So
    does one with different times whose frames were not looked at: they would not have fitted into the memory.
    """
    timers = draft.queue.timers
    most = len(draft.deliver) + draft.more + limit
    due = timers.take_timers_due(draft.due, limit)
    left_out = False
    for entry in draft.take_due(due):
        if entry.state is TransactionState.DISCARDED:
            draft.forget_discarded(entry)
            continue
        # After the first message that does not fit, none does. Otherwise small messages would always pass a large one.
        left_out = left_out or not draft.can_tell(entry)
        part = entry if left_out else draft.part_of(entry)
        is_much = draft.bytes + part.size > max_bytes or len(draft.deliver) + draft.more + part.messages > most
        left_out = left_out or bool(draft.deliver and is_much)
        if left_out or (room is not None and room(part) is False):
            # Back into the schedule at once, whatever happens to this transaction.
            timers.put_back((entry,))
            continue
        is_held = entry.state is TransactionState.HELD
        why = (obstacle_of_held if is_held else obstacle)(part)
        if why is None:
            draft.add_delivery(entry)
        elif is_held:
            # The back-off of a message that waits for others begins anew.
            timers.postpone_retry(entry, draft.now, why, 1 if isinstance(why, InTurn) else entry.attempts + 1)
        else:
            draft.hold_entry(entry, why, entry.decided)
    draft.more_due, draft.left_out = len(due) == limit, left_out


def send_checks(draft: Draft, due_round: DueRound, limit: int) -> int:
    """Draft the checks that are due in a round, and return the number of messages that were looked at.

    Groups that may not be checked keep their checks: none is sent, none is counted. The others share the limit equally.
    The next group may use the rest of a share, so the backlog of one group does not delay the others.
    """
    looked_at, due, as_of = 0, draft.queue.timers, due_round.as_of
    groups = due.in_turn([group for group in due_round.groups if due.has_checks_due(group, as_of)])
    for turn, group in enumerate(groups):
        share = -(-limit // (len(groups) - turn))
        taken = due.take_checks_due(group, as_of, share)
        looked_at += len(taken)
        for entry in draft.take_due(taken):
            limit -= 1
            if draft.queue.policy.expires(entry.since) <= as_of:
                # Its discard is due as well, and needs no check. From now on it is scheduled only by its age.
                continue
            why = due_round.obstacle(entry)
            if why is None:
                draft.send_check(entry)
            else:
                _put_off(draft, entry, why)
    return looked_at


def _put_off(draft: Draft, entry: HalfEntry, why: str) -> None:
    """Try a check later that its topic does not take. It is not counted. From now on OFFSET has the reason."""
    if entry.error is None:
        draft.note_unchecked(entry, why)
        return
    # OFFSET has a reason already. Back into the schedule at once, whatever happens to this transaction.
    attempts = entry.attempts + (not isinstance(why, InTurn))
    draft.queue.timers.postpone_retry(entry, draft.now, why, max(1, attempts))


def discard(draft: Draft, as_of: int, limit: int) -> int:
    """Discard messages that are exhausted or too old at `as_of`. END must be applied as for checks.

    Called before `send_checks`, it saves checks of messages that are too old. Returns the number of messages that were
    looked at.
    """
    timers = draft.queue.timers
    exhausted = timers.take_exhausted(as_of, limit)
    for entry in draft.take_due(exhausted):
        draft.give_up(entry, MAX_CHECKS)
    expired = timers.take_expired(as_of, limit)
    for entry in expired:
        if draft.take_for_age(entry):
            draft.give_up(entry, EXPIRED)
        else:
            # Its age goes on counting, whatever this transaction does to it.
            timers.put_back_expired((entry,))
    return len(exhausted) + len(expired)


#: Most messages that one Kafka transaction parks, 2 MB of records. One turn reads as many, so that undecided messages
#: do not pile up as objects.
PARK_LIMIT = 10_000
#: Beside decisions, due held and scheduled messages get at most this part (1/n) of a Kafka transaction. After n - 1
#: transactions in a row that left some of them out, the next one is theirs alone. So neither waits for the other
#: forever.
SHARE_OF_DUE = 4
#: Checks and discards are planned in steps of this many, until their bodies fill one transaction. While a transaction
#: must be small, they are planned one by one.
_STEP = 10


class Gates(Protocol):
    """What is known of the topics: which messages they take now."""

    @property
    def room(self) -> Room | None:
        """Function to call for each message before it is chosen; None when there is room for all."""

    def begin_draft(self) -> None:
        """Begin to count the room that a plan uses up."""

    def are_clear(self, topics: AbstractSet[str]) -> bool:
        """Whether every fresh message can be delivered to these topics now."""

    def obstacle_of_new(self, entry: HalfEntry) -> str | None:
        """Reason why a newly committed message cannot be delivered now, or None."""

    def obstacle_of_held(self, entry: HalfEntry) -> str | None:
        """Reason why a held message cannot be delivered now, or None."""

    def problem_of_any(self, entry: HalfEntry) -> str | None:
        """Reason why nothing can be written to one of its topics, or None."""


class TurnPlanner:
    """Plans the Kafka transactions of one partition. Times are in ms.

    `enter_fresh` makes entries of the fresh half messages below a HALF offset. `load` reads half messages of HALF by
    offset, and leaves out those that are gone. It is called for messages with different times only, before anything is
    taken from the state.
    """

    def __init__(
        self,
        queue: HalfQueue,
        size: TransactionSize,
        gates: Gates,
        enter_fresh: Callable[[int], None],
        load: Callable[[Collection[int]], Mapping[int, HalfMessage]],
    ) -> None:
        self._queue = queue
        self._size = size
        self._gates = gates
        self._enter_fresh = enter_fresh
        self._steps = KnownSteps(load)
        #: Whether due checks and discards wait for a Kafka transaction of their own. It is the next one.
        self.round_waits = False

    # --- a usual turn: first the part of END is chosen, then Kafka is asked about its topics ------------------------

    def choose(
        self, waiting: Waiting, position: int, due: int, ready: int | None = None, *, may_run: bool = True
    ) -> EndChoice:
        """The next entries of END, as many as one Kafka transaction should hold. END is read up to `position`.

        `ready` is the number of records whose half messages are all known. None stands for all that the transaction can
        hold. Without `may_run`, each message is looked at by itself.
        """
        queue, limits = self._queue, self._size.limits
        self._steps.forget()
        if self.round_waits:
            return EndChoice(queue, limits, due=due, position=queue.next_end if waiting else position)
        unread: list[HalfEntry] = []
        choices = (
            EndChoice(queue, limits, self._gates.room, due=due, position=position, steps=self._steps, unread=one)
            for one in (unread, None)
        )
        choice = self._fill(next(choices), waiting, ready, may_run=may_run)
        if unread:
            self._steps.look_at(unread)
            choice = self._fill(next(choices), waiting, ready, may_run=may_run)
        return choice

    def _fill(self, choice: EndChoice, waiting: Waiting, ready: int | None, *, may_run: bool) -> EndChoice:
        self._gates.begin_draft()
        for number, record in enumerate(waiting):
            if number == ready or not self._choose_from(record, choice, may_run):
                choice.end = record.offset
                break
        return choice

    def _choose_from(self, record: DecisionRecord | MalformedRecord, choice: EndChoice, may_run: bool) -> bool:
        """Choose what has room of one record, as a run if it is one. Whether that is all of it."""
        if not isinstance(record, DecisionRecord):
            return choice.take_malformed(record)
        run = choice.run_of(record) if may_run else None
        if run is not None and self._gates.are_clear(run.topics):
            if choice.take_run(run):
                return True
            if not choice.is_empty:
                # It has no room beside others.
                return False
        self._enter_entries(record)
        return choice.take_entries(record).is_whole

    def plan(
        self, choice: EndChoice, now: int, due_round: DueRound | None, *, may_discard: bool, most_malformed: int
    ) -> Draft:
        """The plan for what was chosen, and for what is due.

        `may_discard`: whether the discard topic takes copies. `most_malformed`: of records of HALF.
        """
        draft, limits = self._new_draft(now, choice.due), self._size.limits
        for part in choice.slices:
            self._decide_part(part, draft)
        for record in choice.malformed:
            draft.skip_end(record.offset + 1)
        if not self.round_waits:
            share = limits.bytes if choice.is_empty else limits.bytes // SHARE_OF_DUE
            self._deliver_due(draft, min(limits.bytes, draft.bytes + share))
        # While transactions must be small, checks and discards go apart from decisions. Otherwise even the smallest one
        # would hold a decision, a check and a discard, and nothing would show which of them is too much. A probe of a
        # check topic always goes apart.
        is_probe = due_round is not None and due_round.is_probe
        is_apart = (self._size.is_shrunk or is_probe) and draft.bytes > 0
        self.round_waits = is_apart and due_round is not None
        if is_apart:
            due_round, most_malformed = None, 0
        if due_round is not None:
            self._plan_round(due_round, draft, may_discard=may_discard)
        may_copy = may_discard and not is_probe
        draft.set_aside_malformed(min(most_malformed, ROUND_LIMIT, limits.entries) if may_copy else 0)
        draft.park_entries(min(PARK_LIMIT, limits.entries), grown_old=due_round is not None)
        return draft

    def _decide_part(self, part: EndSlice, draft: Draft) -> None:
        if part.run is not None:
            if self._gates.are_clear(part.run.topics):
                draft.apply_run(part.run)
                return
            self._enter_entries(part.record)
        draft.apply_end(part, self._gates.obstacle_of_new)

    def _enter_entries(self, record: DecisionRecord) -> None:
        """Make entries of the fresh half messages that a record names, to look at them one by one."""
        fresh = self._queue.fresh
        named = [offset for offset in record.half_offsets if offset in fresh]
        if named and record.source is not Source.FIND:
            self._enter_fresh(max(named) + 1)

    def _plan_round(self, due_round: DueRound, draft: Draft, *, may_discard: bool) -> None:
        """Plan discards and checks, as many as the limits allow."""
        of_discards = due_round.discard_as_of
        if of_discards is not None and may_discard:
            self._in_steps(draft, lambda step: discard(draft, of_discards, step), due_round.most_discards)
        self._in_steps(draft, lambda step: send_checks(draft, due_round, step), due_round.most_checks)

    def _in_steps(self, draft: Draft, plan_more: Callable[[int], int], limit: int) -> None:
        """Plan up to `limit` messages in steps, until their bodies, which are all in memory, fill one transaction.

        `plan_more` looks at up to the given number of messages, and returns how many it has looked at.
        """
        is_shrunk, most = self._size.is_shrunk, self._size.limits.bytes
        step, most = (1, most) if is_shrunk else (_STEP, draft.bytes + most)
        looked_at = 0
        while looked_at < limit and draft.bytes < most:
            found = plan_more(min(step, limit - looked_at))
            if not found:
                break
            looked_at += found

    def _deliver_due(self, draft: Draft, max_bytes: int) -> None:
        gates, limit = self._gates, min(ROUND_LIMIT, self._size.limits.entries)
        deliver_due(draft, gates.obstacle_of_new, gates.obstacle_of_held, limit, max_bytes, gates.room)

    def _new_draft(self, now: int, due: int) -> Draft:
        return Draft(self._queue, now, due, self._steps)

    def look_at_due(self, due: int) -> set[str]:
        """Look at what is due to be delivered by this time (ms), before a plan. Returns its real topics."""
        entries = self._queue.timers.peek_deliveries(due, ROUND_LIMIT)
        self._look_at(entries)
        topics: set[str] = set()
        for entry in entries:
            if self._steps.are_known(entry):
                topics.update(self._steps.due_part(entry, due).entry.topics if entry.is_timed else entry.topics)
        return topics

    def _look_at(self, entries: Sequence[HalfEntry]) -> None:
        """Read the frames of these entries, as many as have room in one Kafka transaction."""
        size, timed = 0, []
        for entry in entries:
            if entry.is_timed and size <= self._size.limits.bytes:
                timed.append(entry)
                size += entry.size
        self._steps.look_at(timed)

    # --- other turns ------------------------------------------------------------------------------------------------

    def plan_due_alone(self, now: int, due: int) -> Draft:
        """A plan of held and scheduled messages only."""
        self._gates.begin_draft()
        draft = self._new_draft(now, due)
        self._deliver_due(draft, self._size.limits.bytes)
        draft.park_entries(0)
        return draft

    def plan_probe(self, entries: Sequence[HalfEntry], now: int, due: int) -> Draft:
        """A plan of these held messages only, of a topic that has refused some: those whose topics take them."""
        self._gates.begin_draft()
        self._look_at(entries)
        draft, limits = self._new_draft(now, due), self._size.limits
        for entry in entries:
            if not draft.can_tell(entry):
                break
            part = draft.part_of(entry)
            is_ready = entry.state is TransactionState.HELD and self._gates.problem_of_any(part) is None
            if draft.deliver and draft.bytes + part.size > limits.bytes:
                break
            if is_ready and len(draft.deliver) < limits.entries:
                draft.add_delivery(entry)
        draft.park_entries(0)
        return draft

    def plan_checkpoint(self, now: int, due: int, end: int = 0) -> Draft:
        """A plan of the checkpoint alone: as small as possible. END has nothing to apply below `end`."""
        draft = Draft(self._queue, now, due)
        draft.skip_end(end)
        draft.park_entries(0)
        return draft
