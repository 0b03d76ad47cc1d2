"""Draft: the effects of one Kafka transaction of a partition, decided on the state plus the effects it already holds.

A draft changes nothing in the HalfQueue until `apply`, which the shell calls only after Kafka has committed. `abandon`
puts entries back that were taken from the schedules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from txbridge.core.checkpoint import Position
from txbridge.core.decision_record import DecisionEntry, DecisionRecord, Source
from txbridge.core.dedup import KnownId
from txbridge.core.fresh_halves import Run
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import Reply
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.choice import DuePart, EndSlice, KnownSteps, OneByOne, Part
from txbridge.core.plan.effects import Abandoned, Obstacle, Refusal
from txbridge.core.states import TRANSITIONS, Event, Outcome, RefusalReason, TransactionState, event_of


class Draft:
    """Effects of one Kafka transaction. The shell writes the lists. Offsets are half offsets."""

    def __init__(self, queue: HalfQueue, now: int, due: int | None = None, steps: KnownSteps | None = None) -> None:
        #: The state on which it is decided. `apply` changes it. Before that, only due entries are taken from its
        #: timers.
        self.queue = queue
        #: Time of the draft (ms).
        self.now = now
        #: Time (ms) up to which timers count as due; not later than `now`.
        self.due = now if due is None else due
        self._steps = steps
        self._final: dict[int, TransactionState] = {}
        self._changed: dict[int, HalfEntry] = {}
        self._taken: list[HalfEntry] = []
        self._taken_for_age: list[HalfEntry] = []
        self._copies_named: set[int] = set()
        # Messages that it delivers for good, and that were decided in an earlier transaction and had to wait.
        self._late: dict[int, HalfEntry] = {}
        #: END position of the next transaction: offset, and index of the entry there.
        self.next_end, self.next_entry = queue.next_end, queue.next_entry
        self.watermark = queue.watermark
        #: Bytes of the messages that it delivers, checks and discards.
        self.bytes = 0
        #: Messages that it delivers beyond one for each transaction.
        self.more = 0
        #: Whether a held or scheduled message that is due had no room.
        self.left_out = False
        #: Whether the limit of due messages was reached, so that there may be more.
        self.more_due = False
        #: What it delivers. Of messages with different times, an entry has only those that are due.
        self.deliver: list[HalfEntry] = []
        #: By half offset, what is due of those whose messages name different times.
        self.due_parts: dict[int, DuePart] = {}
        #: Those of them of which other messages come later.
        self.unfinished: set[int] = set()
        #: Everything that it delivers, in the order of END. The messages that are looked at one by one are in `deliver`
        #: as well.
        self.parts: list[Part] = []
        # The last part, if it takes further entries.
        self._last: OneByOne | None = None
        self.rolled_back: list[HalfEntry] = []
        self.held: list[HalfEntry] = []
        #: Committed before their time.
        self.scheduled: list[HalfEntry] = []
        self.checks: list[HalfEntry] = []
        #: Messages whose check the topic has refused for the first time. The reason is written to OFFSET.
        self.unchecked: list[HalfEntry] = []
        self.discards: list[HalfEntry] = []
        self.resumed: list[HalfEntry] = []
        self.abandoned: list[Abandoned] = []
        self.parked: list[HalfEntry] = []
        self.forgotten: list[HalfEntry] = []
        self.malformed: list[int] = []
        self.refused: list[Refusal] = []
        #: Replies to records of END that ask for one, each with the producer group to which it goes.
        self.replies: list[tuple[str, Reply]] = []
        self.entries = 0
        #: Number of the END entries that were not refused. UNKNOWN is among them, although it has no effect.
        self.decisions: Counter[tuple[Source, Event]] = Counter()
        #: Number of messages delivered, by the append time (ms) of their END.
        self.delivered_since: dict[int, int] = {}

    def apply_end(self, part: EndSlice, obstacle: Obstacle) -> None:
        """Apply the next entries of END, all of one END record, one by one."""
        record, start, stop, _ = part
        is_whole = part.is_whole
        entries = record.entries if is_whole and not start else record.entries[start:stop]
        # Counted for the part as a whole: this loop runs 60,000 times a second.
        delivered, applied = len(self.deliver), list[Event]()
        self.entries += len(entries)
        if record.source is Source.FIND:
            # A question, and no decision.
            entries = ()
        for entry in entries:
            event = event_of(entry.decision, record.source)
            reason = self._apply_entry(record, entry, event, obstacle)
            if reason is None:
                applied.append(event)
            else:
                self.refused.append(Refusal(record.offset, record.source, entry, reason))
        if record.reply is not None:
            self._note_reply(record, record.reply)
        self.next_end, self.next_entry = (record.offset + 1, 0) if is_whole else (record.offset, stop)
        for event in set(applied):
            self.decisions[record.source, event] += applied.count(event)
        self._note_delivered(record, len(self.deliver) - delivered)

    def _note_reply(self, record: DecisionRecord, name: str) -> None:
        """Note the state in which a record leaves the transaction that its one entry names.

        Only who knows the id learns something: offsets can be guessed.
        """
        command, reply = record.entries[0], Reply(name)
        known = self.queue.find_id(command.transaction_id)
        is_named = record.source is Source.FIND or (
            known is not None and known.offset == self.queue.first_of(command.half_offset)
        )
        if known is not None and is_named:
            state = self._state_of(known, record.group)
            now_abandoned = (one.entry.delivered or 0 for one in self.abandoned if one.entry.offset == known.offset)
            delivered = next(now_abandoned, known.delivered) if state is TransactionState.ABANDONED else None
            if state is not None:
                reply = Reply(name, state, known.offset, delivered)
        self.replies.append((record.group, reply))

    def _state_of(self, known: KnownId, group: str) -> TransactionState | None:
        """State of a transaction in this draft; None for one of another group."""
        offset, fresh = known.offset, self.queue.fresh
        if (entry := self._changed.get(offset) or self.queue.entry(offset)) is not None:
            owner: str | None = entry.group
            state = entry.state
        elif offset in fresh and (half := fresh.open_at(offset)) is not None:
            owner, state = half.group, TransactionState.PENDING
        elif known.finished is not None:
            owner, state = known.finished.group, known.finished.outcome.state
        else:
            return None
        return self._final.get(offset, state) if owner == group else None

    def _note_delivered(self, record: DecisionRecord, count: int) -> None:
        if count and record.appended is not None:
            self.delivered_since[record.appended] = self.delivered_since.get(record.appended, 0) + count

    def apply_run(self, run: Run) -> None:
        """Apply a record that decides fresh half messages only. None of its decisions can be refused or held."""
        record, commits, rollbacks = run.record, run.commits, run.rollbacks
        self._final.update(dict.fromkeys(commits, TransactionState.COMMITTED))
        self._final.update(dict.fromkeys(rollbacks, TransactionState.ROLLED_BACK))
        self.parts.append(run)
        self._last = None
        self.bytes += run.size
        self.entries += len(record.entries)
        self.next_end, self.next_entry = record.offset + 1, 0
        unknowns = len(record.entries) - len(commits) - len(rollbacks)
        counts = (Event.COMMIT, len(commits)), (Event.ROLLBACK, len(rollbacks)), (Event.UNKNOWN, unknowns)
        for event, count in counts:
            self.decisions[record.source, event] += count
        self._note_delivered(record, len(commits))

    def skip_end(self, next_end: int) -> None:
        """Pass over END up to this offset: a malformed record, which is discarded, or another producer's marker."""
        if next_end > self.next_end:
            self.next_end, self.next_entry = next_end, 0

    def _apply_entry(
        self, record: DecisionRecord, command: DecisionEntry, event: Event, obstacle: Obstacle
    ) -> RefusalReason | None:
        offset = self.queue.first_of(command.half_offset)
        if offset != command.half_offset:
            self._copies_named.add(command.half_offset)
        entry = self._open_entry(offset)
        if entry is None:
            return self._refuse_finished(offset, record.group, command.transaction_id, event)
        if entry.transaction_id != command.transaction_id:
            return RefusalReason.WRONG_TRANSACTION_ID
        if entry.group != record.group:
            return RefusalReason.WRONG_GROUP
        why = None
        if event is Event.COMMIT and entry.state is TransactionState.PENDING:
            if entry.deliver_at is not None and entry.deliver_at > self.due:
                event = Event.COMMIT_EARLY
            elif (why := obstacle(entry if entry.delivered is None else self.part_of(entry))) is not None:
                event = Event.COMMIT_UNDELIVERABLE
            elif entry.delivered is not None and self._due_part(entry).next_time is not None:
                event = Event.COMMIT_STEP
        transition = TRANSITIONS[entry.state, event]
        if transition.refused is None and transition.state is not entry.state:
            if event is Event.COMMIT or event is Event.COMMIT_STEP:
                self.add_delivery(entry, record.offset)
            else:
                self._move_to(entry, transition.state, record, command, why)
        return transition.refused

    def _refuse_finished(self, offset: int, group: str, transaction_id: str, event: Event) -> RefusalReason | None:
        state = self._final_state(offset)
        if isinstance(state, RefusalReason):
            return state
        right_id, right_group = self.queue.owner_of(offset)
        if right_id not in {None, transaction_id}:
            return RefusalReason.WRONG_TRANSACTION_ID
        if right_group not in {None, group}:
            return RefusalReason.WRONG_GROUP
        if state is TransactionState.DISCARDED:
            # Malformed, or discarded and forgotten since. It cannot be resumed.
            return RefusalReason.LATE
        return TRANSITIONS[state, event].refused

    def _move_to(
        self, entry: HalfEntry, state: TransactionState, record: DecisionRecord, command: DecisionEntry, why: str | None
    ) -> None:
        if state is TransactionState.ROLLED_BACK:
            self._final[entry.offset] = state
            self.rolled_back.append(entry)
        elif state is TransactionState.ABANDONED:
            self._final[entry.offset] = state
            self.abandoned.append(Abandoned(entry, record.client_id, command.remark, record.source))
        elif state is TransactionState.HELD:
            self.hold_entry(entry, why, record.offset)
        elif state is TransactionState.SCHEDULED:
            assert entry.deliver_at is not None
            due = entry.deliver_at
            self.scheduled.append(self._change_entry(entry, state, due, decided=record.offset, error=None, attempts=0))
        else:
            anew = {"checks": 0, "resumed": self.now, "reason": None, "discarded_at": None, "error": None}
            self.resumed.append(self._change_entry(entry, state, self.now, attempts=0, **anew))

    def hold_entry(self, entry: HalfEntry, why: str | None, decided: int | None) -> None:
        """Hold a message that is committed (END offset `decided`) and cannot be delivered now."""
        due = self.queue.policy.retry_refused(self.now, 1)
        self.held.append(self._change_entry(entry, TransactionState.HELD, due, decided=decided, error=why, attempts=1))

    def can_tell(self, entry: HalfEntry) -> bool:
        """Whether `part_of` can tell what is due of this entry."""
        return entry.delivered is None or (self._steps is not None and self._steps.are_known(entry))

    def part_of(self, entry: HalfEntry) -> HalfEntry:
        """What is due of a committed message: all of it, if it names one time or none."""
        return entry if entry.delivered is None else self._due_part(entry).entry

    def _due_part(self, entry: HalfEntry) -> DuePart:
        assert self._steps is not None
        return self._steps.due_part(entry, self.due)

    def add_delivery(self, entry: HalfEntry, decided: int | None = None) -> None:
        """Deliver what is due of a committed message. `decided`: END offset, if this draft applies the decision."""
        if entry.delivered is None:
            self._final[entry.offset] = TransactionState.COMMITTED
        else:
            entry = self._add_step(entry, entry.decided if decided is None else decided)
        if entry.state is not TransactionState.PENDING and entry.offset not in self.unfinished:
            self._late[entry.offset] = entry
        self.deliver.append(entry)
        if self._last is None:
            self.parts.append(last := OneByOne(steps=self.due_parts))
            self._last = last
        self._last.entries.append(entry)
        self.bytes += entry.size
        self.more += entry.messages - 1

    def _add_step(self, entry: HalfEntry, decided: int | None) -> HalfEntry:
        """Return what is due of messages with different times, and schedule those that come next."""
        part = self.due_parts[entry.offset] = self._due_part(entry)
        if part.next_time is None:
            self._final[entry.offset] = TransactionState.COMMITTED
        else:
            self.unfinished.add(entry.offset)
            event = Event.COMMIT_STEP if entry.state is TransactionState.PENDING else Event.DELIVER_STEP
            state, time = TRANSITIONS[entry.state, event].state, part.next_time
            later: dict[str, Any] = {"deliver_at": time, "delivered": part.stop, "decided": decided}
            self._change_entry(entry, state, time, error=None, attempts=0, **later)
        return part.entry

    def send_check(self, entry: HalfEntry) -> None:
        """Send a check of a pending message."""
        due, checks = self.queue.policy.next_check(self.now), entry.checks + 1
        changed = self._change_entry(entry, TransactionState.PENDING, due, checks=checks, error=None, attempts=0)
        # The shell writes a check that was refused before apart from others.
        self.checks.append(changed._replace(attempts=entry.attempts))
        self.bytes += entry.size

    def note_unchecked(self, entry: HalfEntry, why: str) -> None:
        """Put off a check that its topic has refused for the first time. It is not counted."""
        due = self.queue.policy.retry_refused(self.now, 1)
        self.unchecked.append(self._change_entry(entry, entry.state, due, error=why, attempts=1))

    def give_up(self, entry: HalfEntry, reason: str) -> None:
        """Discard a message that nobody has decided."""
        state = TRANSITIONS[entry.state, Event.GIVE_UP].state
        due = self.now + self.queue.policy.discard_retention
        self.discards.append(self._change_entry(entry, state, due, reason=reason))
        self.bytes += entry.size

    def set_aside_malformed(self, limit: int) -> None:
        """Copy malformed records of HALF, the first `limit` of them, to the discard topic.

        Copies that END named in this draft are always among them. So beside a decision there is always the record that
        explains which message it decided.
        """
        waiting = self.queue.malformed
        self.malformed = sorted({*sorted(waiting)[:limit], *(waiting & self._copies_named)})

    def park_entries(self, limit: int, *, grown_old: bool = True) -> None:
        """Park messages that hold the low watermark back too far, and compute the new watermark.

        `grown_old`: also park messages for their age. False while END may still hold their decisions.
        """
        queue, policy = self.queue, self.queue.policy
        passed_bytes, parked = 0, 0
        watermark = queue.half_position
        unread = queue.malformed - set(self.malformed)
        for offset, size in queue.window:
            entry = self._open_entry(offset)
            if entry is None:
                if offset in unread:
                    watermark = offset
                    break
            elif not entry.parked and offset not in self._changed:
                old = grown_old and self.now - entry.born >= policy.effective_park_after
                if parked == limit or not (old or queue.lags_behind(offset, passed_bytes)):
                    watermark = offset
                    break
                self.parked.append(self._change_entry(entry, entry.state, entry.next_due))
                parked += 1
            passed_bytes += size
        else:
            fresh = queue.fresh
            while watermark < fresh.stop and (watermark in self._final or queue.outcome_of(watermark) is not None):
                watermark += 1
        self.watermark = watermark

    def take_due(self, entries: list[HalfEntry]) -> list[HalfEntry]:
        """Note entries that were taken from a schedule. Returns those that this draft has not touched yet."""
        self._taken += entries
        return [entry for entry in entries if not self._is_touched(entry.offset)]

    def take_for_age(self, entry: HalfEntry) -> bool:
        """Note an entry that was taken from the schedule of ages. False, and not noted, if it was touched already."""
        if self._is_touched(entry.offset):
            return False
        self._taken_for_age.append(entry)
        return True

    def forget_discarded(self, entry: HalfEntry) -> None:
        """Forget a discarded message, which cannot be resumed any more."""
        self._final[entry.offset] = TransactionState.DISCARDED
        self.forgotten.append(entry)

    def _is_touched(self, offset: int) -> bool:
        return offset in self._final or offset in self._changed

    def _open_entry(self, offset: int) -> HalfEntry | None:
        if offset in self._final:
            return None
        return self._changed.get(offset) or self.queue.entry(offset)

    def _final_state(self, offset: int) -> TransactionState | RefusalReason:
        state = self._final.get(offset)
        if state is not None:
            return state
        finished = self.queue.finish_of(offset)
        if finished is not None:
            return finished.outcome.state
        assert offset not in self.queue.fresh, "a fresh half message was not entered"
        late = offset < self.queue.watermark
        return RefusalReason.LATE if late else RefusalReason.NO_HALF_MESSAGE

    def _change_entry(self, entry: HalfEntry, state: TransactionState, next_due: int, **other: Any) -> HalfEntry:
        """Note the new version of an entry. This transaction parks it."""
        changed = entry._replace(state=state, next_due=next_due, parked=True, **other)
        self._changed[entry.offset] = changed
        return changed

    def note_discarded(self, offset: int, partition: int, discard_offset: int) -> None:
        """Note where the discard record of a message landed. Its parked entry, written later, has that position."""
        self._changed[offset] = self._changed[offset]._replace(discarded_at=(partition, discard_offset))

    @property
    def changed(self) -> Collection[HalfEntry]:
        """Open entries whose parked entry must be written, in their new version."""
        return [entry for offset, entry in self._changed.items() if offset not in self._final]

    @property
    def tombstones(self) -> list[int]:
        """Half offsets whose parked entry must be removed."""
        abandoned = [one.entry for one in self.abandoned]
        finished = (*self.deliver, *self.rolled_back, *self.forgotten, *abandoned)
        # Without entries that only this transaction would have parked.
        parked = [entry.offset for entry in finished if entry.parked and self._is_parked(entry.offset)]
        return [offset for offset in dict.fromkeys(parked) if offset in self._final] if self.due_parts else parked

    def _is_parked(self, offset: int) -> bool:
        if offset not in self._changed:
            return True
        before = self.queue.entry(offset)
        return before is not None and before.parked

    @property
    def delivered(self) -> int:
        """Number of messages that it delivers."""
        runs = sum(len(part.commits) for part in self.parts if isinstance(part, Run))
        return runs + len(self.deliver) + self.more

    @property
    def real_topics(self) -> set[str]:
        """Real topics of its parts."""
        return set[str]().union(*(part.topics for part in self.parts))

    @property
    def size(self) -> int:
        """Amount of work: changed messages, malformed records and refused decisions."""
        return len(self._final) + len(self._changed) + len(self.malformed) + len(self.refused)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write: no effect, no END passed."""
        has_moved_on = (self.next_end, self.next_entry) != (self.queue.next_end, self.queue.next_entry)
        return not (self._final or self._changed or self.malformed or has_moved_on)

    def ends_of(self, outcome: Outcome, offsets: Collection[int]) -> tuple[Position, Position] | None:
        """The entries of END that this transaction applies, if they decide these commits (see `ops`), or None."""
        if outcome is not Outcome.COMMIT or not self._late.keys().isdisjoint(offsets):
            return None
        queue = self.queue
        return (queue.next_end, queue.next_entry), (self.next_end, self.next_entry)

    def ops(self) -> list[tuple[Outcome, list[int]]]:
        """Outcome and half offsets, as OP will name them. A forgotten message was named when it was discarded.

        Messages that were decided earlier and had to wait are named apart, because they are out of order.
        """
        late = self._late
        commits = [offset for part in self.parts for offset in part.commits if offset not in late]
        rollbacks = [entry.offset for entry in self.rolled_back]
        for part in self.parts:
            rollbacks += part.rollbacks
        named = (
            (Outcome.COMMIT, commits),
            (Outcome.COMMIT, list(late)),
            (Outcome.ROLLBACK, rollbacks),
            (Outcome.DISCARD, [*(entry.offset for entry in self.discards), *self.malformed]),
            (Outcome.ABANDON, [one.entry.offset for one in self.abandoned]),
        )
        return [(outcome, offsets) for outcome, offsets in named if offsets]

    def apply(self, now: int) -> None:
        """Apply the draft to the state. Kafka has committed it, as is known at `now` (ms).

        An application sees a check when it is committed, and has a full interval from then on to answer. So the next
        check is due later than this Kafka transaction has written, by the time that the transaction took.
        """
        queue = self.queue
        for check in self.checks:
            entry = self._changed[check.offset]
            self._changed[check.offset] = entry._replace(next_due=max(entry.next_due, queue.policy.next_check(now)))
        queue.next_end, queue.next_entry = self.next_end, self.next_entry
        for part in self.parts:
            queue.finish_messages(part.commits, Outcome.COMMIT)
            queue.finish_messages(part.rollbacks, Outcome.ROLLBACK)
        queue.finish_messages([entry.offset for entry in self.rolled_back], Outcome.ROLLBACK)
        abandoned = [one.entry for one in self.abandoned]
        queue.finish_messages([entry.offset for entry in abandoned], Outcome.ABANDON)
        queue.note_waited(self._late.values(), Outcome.COMMIT)
        queue.note_waited(abandoned, Outcome.ABANDON)
        queue.finish_messages([*self.malformed, *(entry.offset for entry in self.forgotten)], Outcome.DISCARD)
        for entry in self.changed:
            queue.update_entry(entry)
        queue.advance_watermark()

    def abandon(self) -> None:
        """Drop the draft, which Kafka has not committed. Entries that were taken go back into the schedules.

        Those that are there already, as the draft has not touched them, do no harm when they come again.
        """
        self.queue.timers.put_back(self._taken)
        self.queue.timers.put_back_expired(self._taken_for_age)
