"""HalfQueue: all that a worker knows about one partition of HALF. Pure: no I/O, and the time is passed in.

It changes in two ways only. Reading HALF adds messages (`read`, `read_malformed`). Everything else is drafted first
(`draft.Draft`, which changes nothing here), written to Kafka in one transaction, and then applied: so an aborted
transaction leaves no trace, as in Kafka's own transaction coordinator (prepare, append, complete).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import intern

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.copies import RecentHalves
from txbridge.core.half_message import HalfMessage
from txbridge.core.progress import ParkedEntry
from txbridge.core.schedule import Schedule
from txbridge.core.states import Outcome, TransactionState

#: Outcomes below the watermark that are remembered, in two generations of this many: about 8 MB when both are full.
_REMEMBERED = 50_000


@dataclass(slots=True, eq=False)
class HalfEntry:
    """One open half message: pending, held, or discarded and resumable. Its body lives elsewhere (PayloadStore)."""

    offset: int
    transaction_id: str
    group: str
    real_topic: str
    born: int
    size: int
    #: When the next check, the next delivery attempt, or the removal of a discarded entry is due (ms).
    next_due: int
    state: TransactionState = TransactionState.PENDING
    checks: int = 0
    #: Whether a parked entry for it stands in OFFSET.
    parked: bool = False
    #: Of a held one: END offset of its decision, why it can not be delivered, and attempts so far.
    decided: int | None = None
    error: str | None = None
    attempts: int = 0
    #: Of a discarded one: why, and where it lies in the discard topic.
    reason: str | None = None
    discarded_at: tuple[int, int] | None = None
    #: When it was resumed; its age counts from then.
    resumed: int | None = None

    @property
    def since(self) -> int:
        """From when its age counts (ms)."""
        return self.born if self.resumed is None else self.resumed

    def to_parked(self, end: int) -> ParkedEntry:
        """The record of OFFSET that says all this."""
        return ParkedEntry(
            half_offset=self.offset,
            state=self.state,
            transaction_id=self.transaction_id,
            group=self.group,
            real_topic=self.real_topic,
            born=self.born,
            size=self.size,
            checks=self.checks,
            next_due=self.next_due,
            end=end,
            decided=self.decided,
            error=self.error,
            reason=self.reason,
            discarded_at=self.discarded_at,
            resumed=self.resumed,
        )

    @classmethod
    def from_parked(cls, parked: ParkedEntry) -> HalfEntry:
        return cls(
            offset=parked.half_offset,
            transaction_id=parked.transaction_id,
            group=intern(parked.group),
            real_topic=intern(parked.real_topic),
            born=parked.born,
            size=parked.size,
            next_due=parked.next_due,
            state=parked.state,
            checks=parked.checks,
            parked=True,
            decided=parked.decided,
            error=parked.error,
            reason=parked.reason,
            discarded_at=parked.discarded_at,
            resumed=parked.resumed,
        )


class HalfQueue:
    """State of one half partition.

    Every half offset at or above the low watermark that was read stands in the window; it is open (an entry), finished
    (an outcome) or malformed (a copy counts as that) and not yet set aside. Below the low watermark only parked entries
    are known for certain; the last outcomes are remembered, so that a late decision is told what it contradicts.
    """

    def __init__(
        self,
        policy: CheckPolicy,
        *,
        watermark: int = 0,
        next_end: int = 0,
        next_op: int = 0,
    ) -> None:
        self.policy = policy
        #: Next END offset to apply.
        self.next_end = next_end
        #: Next HALF offset to read.
        self.half_position = watermark
        self._entries: dict[int, HalfEntry] = {}
        self._outcomes: dict[int, Outcome] = {}
        # The younger generation and the older: forgetting half of them at once costs nothing per message.
        self._remembered: tuple[dict[int, Outcome], dict[int, Outcome]] = ({}, {})
        self._malformed: set[int] = set()
        self._recent = RecentHalves()
        self._window: deque[tuple[int, int]] = deque()
        self._window_bytes = 0
        # Checks are kept by group: those of a group with nobody alive wait, and must not stand in front of others.
        self._checks: dict[str, Schedule] = {}
        self._exhausted = Schedule(self._is_exhausted)
        self._timers = Schedule(self._is_timer)
        self._by_age = Schedule(self._is_aging)
        self._ops: deque[tuple[int, int]] = deque()
        self._next_op = next_op

    # --- what a take-over knows -------------------------------------------------------------------------------------

    def restore_parked(self, parked: Iterable[ParkedEntry]) -> None:
        """Take in the parked entries of OFFSET, in any order, before anything is read."""
        for record in parked:
            entry = HalfEntry.from_parked(record)
            self._entries[entry.offset] = entry
            self._schedule(entry)
            self._schedule_expiry(entry)

    def restore_op(self, op_offset: int, outcome: Outcome, half_offsets: Iterable[int]) -> None:
        """Take in one OP record, in the order of OP, after the parked entries and before anything is read."""
        watermark = self.half_position
        named = [offset for offset in half_offsets if offset >= watermark]
        for offset in named:
            # A discarded message is open, if only for a resume: its parked entry is the last word.
            if offset not in self._entries:
                self._outcomes[offset] = outcome
        if named:
            self._ops.append((op_offset, max(named)))
        self._next_op = op_offset + 1

    # --- reading HALF -----------------------------------------------------------------------------------------------

    def note_id(self, half: HalfMessage) -> int | None:
        """To be told of every valid record of HALF first, those below the watermark that a take-over reads included.

        The offset of its first when it is a copy (`copies`), which then is `read_malformed`.
        """
        return self._recent.note(half.offset, half.transaction_id, half.size)

    def read(self, half: HalfMessage) -> bool:
        """Take in the next half message. True when it is open, so that its body will be needed."""
        if not self._enter(half.offset, half.size):
            return False
        entry = self._entries.get(half.offset)
        if entry is None:
            if half.offset in self._outcomes:
                return False
            entry = HalfEntry(
                offset=half.offset,
                transaction_id=half.transaction_id,
                # A million messages share a few groups and topics.
                group=intern(half.group),
                real_topic=intern(half.real_topic),
                born=half.born,
                size=half.size,
                next_due=self.policy.first_check(half.born, half.immunity),
            )
            self._entries[half.offset] = entry
            # One that will be parked before its first check is scheduled then: most messages are long finished by that
            # time, and a schedule is not searched for those that are.
            if entry.next_due <= entry.born + self.policy.effective_park_after:
                self._schedule(entry)
        return entry.state is not TransactionState.DISCARDED

    def read_malformed(self, offset: int, size: int) -> bool:
        """Take in a malformed record of HALF. True when it has not been set aside yet."""
        if not self._enter(offset, size) or offset in self._outcomes:
            return False
        self._malformed.add(offset)
        return True

    def advance_reader(self, position: int) -> None:
        """The log has no more records below this offset (what is missing are transaction markers of strangers)."""
        self.half_position = max(self.half_position, position)

    def _enter(self, offset: int, size: int) -> bool:
        if offset < self.half_position:
            return False
        self.half_position = offset + 1
        self._window.append((offset, size))
        self._window_bytes += size
        return True

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """Every half message below it is finished or parked."""
        return self._window[0][0] if self._window else self.half_position

    @property
    def replay_op(self) -> int:
        """OP offset from which a take-over must replay: that of the first record that names an offset >= watermark."""
        return self._ops[0][0] if self._ops else self._next_op

    @property
    def recent_start(self) -> int:
        """HALF offset from which a take-over must read, to recognise the copies that this queue would."""
        start = self._recent.start
        return self.watermark if start is None else min(start, self.watermark)

    def first_of(self, offset: int) -> int:
        """The offset of the half message that this one means: of a copy, that of the first."""
        return self._recent.first_of(offset)

    def entry(self, offset: int) -> HalfEntry | None:
        return self._entries.get(offset)

    def outcome(self, offset: int) -> Outcome | None:
        """How a message at or above the watermark was finished; None for an open one."""
        return self._outcomes.get(offset)

    def remembered(self, offset: int) -> Outcome | None:
        """How a message below the watermark was finished, if this process saw it and has not forgotten it."""
        younger, older = self._remembered
        return younger.get(offset) or older.get(offset)

    def open_entries(self) -> Iterator[HalfEntry]:
        return iter(self._entries.values())

    @property
    def malformed(self) -> frozenset[int]:
        """Malformed records of HALF that still have to be set aside."""
        return frozenset(self._malformed)

    def window(self) -> Iterator[tuple[int, int]]:
        """Offsets at or above the watermark that were read, with their sizes, in order."""
        return iter(self._window)

    @property
    def window_bytes(self) -> int:
        return self._window_bytes

    def lags_behind(self, watermark: int, passed_bytes: int) -> bool:
        """Whether the watermark must not stand here, so many bytes into the window: too much would be read again."""
        return (
            self.half_position - watermark > self.policy.park_after_records
            or self._window_bytes - passed_bytes > self.policy.park_after_bytes
        )

    def counts(self) -> Mapping[TransactionState, int]:
        """Open messages by state."""
        counts = dict.fromkeys((TransactionState.PENDING, TransactionState.HELD, TransactionState.DISCARDED), 0)
        for entry in self._entries.values():
            counts[entry.state] += 1
        return counts

    # --- schedules --------------------------------------------------------------------------------------------------

    def _schedule(self, entry: HalfEntry) -> None:
        if entry.state is not TransactionState.PENDING:
            schedule = self._timers
        elif self.policy.is_exhausted(entry.checks):
            schedule = self._exhausted
        elif (found := self._checks.get(entry.group)) is not None:
            schedule = found
        else:
            schedule = self._checks[entry.group] = Schedule(self._awaits_check)
        schedule.push(entry.next_due, entry.offset)

    def _schedule_expiry(self, entry: HalfEntry) -> None:
        # Parked entries only: what grows old is parked long before, and what is finished young costs nothing.
        if entry.state is TransactionState.PENDING:
            self._by_age.push(self.policy.expires(entry.since), entry.offset)

    # What makes an item of each schedule current.

    def _awaits_check(self, due: int, offset: int) -> bool:
        entry = self._entries.get(offset)
        return (
            entry is not None
            and entry.next_due == due
            and entry.state is TransactionState.PENDING
            and not self.policy.is_exhausted(entry.checks)
        )

    def _is_exhausted(self, due: int, offset: int) -> bool:
        entry = self._entries.get(offset)
        return (
            entry is not None
            and entry.next_due == due
            and entry.state is TransactionState.PENDING
            and self.policy.is_exhausted(entry.checks)
        )

    def _is_timer(self, due: int, offset: int) -> bool:
        entry = self._entries.get(offset)
        return entry is not None and entry.next_due == due and entry.state is not TransactionState.PENDING

    def _is_aging(self, expires: int, offset: int) -> bool:
        entry = self._entries.get(offset)
        return (
            entry is not None
            and entry.state is TransactionState.PENDING
            and self.policy.expires(entry.since) == expires
        )

    def groups_with_checks_due(self, now: int) -> list[str]:
        """Producer groups of which a check is due; the one that was served last comes last."""
        groups = []
        for group, schedule in list(self._checks.items()):
            due = schedule.next_due()
            if due is None:
                del self._checks[group]
            elif due <= now:
                groups.append(group)
        return groups

    # Who takes from a schedule must apply the draft or put back.

    def take_checks_due(self, group: str, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` messages of a group whose check is due."""
        schedule = self._checks.get(group)
        if schedule is None:
            return []
        taken = self._taken(schedule, now, limit)
        if taken:
            self._checks[group] = self._checks.pop(group)
        return taken

    def take_exhausted(self, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` messages undecided a full interval after their last check."""
        return self._taken(self._exhausted, now, limit)

    def take_timers_due(self, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` held messages to retry, or discarded ones to forget."""
        return self._taken(self._timers, now, limit)

    def take_expired(self, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` pending messages that have reached their greatest age, oldest first."""
        return self._taken(self._by_age, now, limit)

    def _taken(self, schedule: Schedule, now: int, limit: int) -> list[HalfEntry]:
        return [self._entries[offset] for offset in schedule.take(now, limit)]

    def put_back(self, entries: Iterable[HalfEntry]) -> None:
        """Schedule again what was taken (but for its age) and not applied."""
        for entry in entries:
            self._schedule(entry)

    def put_back_expired(self, entries: Iterable[HalfEntry]) -> None:
        """Schedule again what was taken for its age and not applied."""
        for entry in entries:
            self._schedule_expiry(entry)

    def topics_of_due_retries(self, now: int, limit: int) -> set[str]:
        """Real topics of the held messages that `take_timers_due` would yield."""
        entries = (self._entries[offset] for offset in self._timers.peek(now, limit))
        return {entry.real_topic for entry in entries if entry.state is TransactionState.HELD}

    def postpone_held(self, entry: HalfEntry, now: int, error: str) -> None:
        """A held message is still not deliverable: try later. Only this process needs to know; nothing is written."""
        entry.attempts += 1
        entry.error = error
        entry.next_due = self.policy.retry_held(now, entry.attempts)
        self._schedule(entry)

    def next_due(self) -> int | None:
        """The earliest time at which something is due, or None. Checks of a dead group are due all the same."""
        if self._malformed:
            return 0
        schedules = (*self._checks.values(), self._exhausted, self._timers, self._by_age)
        heads = [due for schedule in schedules if (due := schedule.next_due()) is not None]
        # The first one that holds the watermark back is due to be parked, and those behind it follow.
        passed_bytes = 0
        for offset, size in self._window:
            entry = self._entries.get(offset)
            if entry is not None and not entry.parked:
                lags = self.lags_behind(offset, passed_bytes)
                heads.append(0 if lags else entry.born + self.policy.effective_park_after)
                break
            passed_bytes += size
        return min(heads, default=None)

    # --- applying what Kafka has committed --------------------------------------------------------------------------

    def finish(self, offset: int, outcome: Outcome) -> None:
        """A message is finished for good (or discarded without a way back: a malformed one)."""
        self._entries.pop(offset, None)
        self._malformed.discard(offset)
        if offset >= self.watermark:
            self._outcomes[offset] = outcome
        else:
            self._remember(offset, outcome)

    def update(self, entry: HalfEntry) -> None:
        """An open entry has changed and is scheduled anew. It was parked by the same Kafka transaction."""
        before = self._entries[entry.offset]
        entry.parked = True
        self._entries[entry.offset] = entry
        if not before.parked or before.state is not entry.state:
            self._schedule_expiry(entry)
        self._schedule(entry)

    def note_op(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Where an OP record of ours landed; negative when the producer was not told. To be called before `advance`."""
        if op_offset < 0:
            # At the earliest behind the last one that we know of; a take-over then replays a little more.
            op_offset = max(self._next_op - 1, 0)
        self._ops.append((op_offset, max(half_offsets)))
        # Its transaction is committed, so that the marker takes an offset behind it, and our next one lands above that.
        # To count it makes a difference when all of OP has expired and the log begins behind the marker.
        self._next_op = max(self._next_op, op_offset + 2)

    def advance(self) -> None:
        """Move the low watermark over everything finished or parked, and forget what lies below it."""
        window = self._window
        while window and self._may_pass(window[0][0]):
            offset, size = window.popleft()
            self._window_bytes -= size
            outcome = self._outcomes.pop(offset, None)
            if outcome is not None:
                self._remember(offset, outcome)
        watermark = self.watermark
        while self._ops and self._ops[0][1] < watermark:
            self._ops.popleft()

    def _remember(self, offset: int, outcome: Outcome) -> None:
        younger, _ = self._remembered
        # A discarded message that was resumed is finished twice: the last time counts, as the younger is asked first.
        younger[offset] = outcome
        if len(younger) >= _REMEMBERED:
            self._remembered = ({}, younger)

    def _may_pass(self, offset: int) -> bool:
        entry = self._entries.get(offset)
        return entry.parked if entry is not None else offset not in self._malformed
