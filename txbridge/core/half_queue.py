"""HalfQueue: all that a worker knows about one partition of HALF. Pure: no I/O, and the time is passed in.

It changes in two ways only. Reading HALF adds messages (`read`, `read_malformed`). Everything else is drafted first
(`draft.Draft`, which changes nothing here), written to Kafka in one transaction, and then applied: so an aborted
transaction leaves no trace, as in Kafka's own transaction coordinator (prepare, append, complete).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.dedup import DeduplicationWindow
from txbridge.core.fresh_halves import FreshHalves
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.op_positions import OpPositions
from txbridge.core.open_counts import OpenCounts
from txbridge.core.open_messages import OpenMessages
from txbridge.core.remembered import Remembered
from txbridge.core.states import Outcome, TransactionState
from txbridge.core.timers import Timers


class HalfQueue:
    """State of one half partition.

    Every half offset at or above the low watermark that was read stands in the window, or behind it is fresh. In the
    window it is open (an entry), finished (an outcome) or malformed (a copy counts as that) and not yet set aside. A
    fresh one is open, or finished (an outcome). Below the low watermark only parked entries
    are known for certain; the last outcomes are remembered, so that a late decision is told what it contradicts.
    """

    def __init__(
        self,
        policy: CheckPolicy,
        *,
        watermark: int = 0,
        next_end: int = 0,
        next_entry: int = 0,
        next_op: int = 0,
    ) -> None:
        self.policy = policy
        # What the policy says of nearly every message, asked once.
        self._park_after, self._first_check = policy.effective_park_after, policy.first_check(0, None)
        #: Next END offset to apply, and index of the first entry there that is not applied yet.
        self.next_end, self.next_entry = next_end, next_entry
        #: HALF offset behind the window; what is fresh begins here.
        self.half_position = watermark
        #: Read, and of nobody's concern yet.
        self.fresh = FreshHalves()
        # So long after its birth (ms) one is of concern: for its first check, or to be parked.
        self._fresh_for = min(self._first_check, self._park_after)
        # HALF offset below which a take-over knows something of what is still to be read.
        self._restored_to = watermark
        self._entries = OpenMessages()
        self._outcomes: dict[int, Outcome] = {}
        self._remembered = Remembered()
        #: How a message below the watermark was finished, if this process saw it and has not forgotten it.
        self.remembered = self._remembered.get
        self._malformed: set[int] = set()
        self._recent = DeduplicationWindow(at_least=policy.recognise_at_least, is_open=self._is_open)
        #: The offset of the half message that an offset means: of a copy, that of the first.
        self.first_of = self._recent.first_of
        #: The open message at an offset, or None.
        self.entry = self._entries.get
        self._window: deque[tuple[int, int]] = deque()
        self._window_bytes = 0
        self.timers = Timers(policy, self._entries)
        #: What of OP a take-over will need.
        self.ops = OpPositions(next_op)

    # --- what a take-over knows -------------------------------------------------------------------------------------

    def restore_parked(self, parked: ParkedEntries) -> None:
        """Take in the parked entries of OFFSET before anything is read. `parked` hands them over and is empty then."""
        rows, others = parked.release()
        above = rows.split(self.half_position)
        self._entries.adopt(rows)
        self.timers.load(rows)
        for entry in (*above, *others):
            self._entries.put(entry)
            self.timers.schedule(entry)
            self.timers.schedule_expiry(entry)
            self._restored_to = max(self._restored_to, entry.offset + 1)

    def restore_op(self, op_offset: int, outcome: Outcome, half_offsets: Collection[int]) -> None:
        """Take in one OP record, in the order of OP, after the parked entries and before anything is read."""
        watermark = self.half_position
        named = [offset for offset in half_offsets if offset >= watermark]
        self._restored_to = max(self._restored_to, max(named, default=-1) + 1)
        for offset in named:
            # A discarded message is open, if only for a resume: its parked entry is the last word.
            if offset not in self._entries:
                self._outcomes[offset] = outcome
        self.ops.restore(op_offset, half_offsets, is_needed=bool(named))

    # --- reading HALF -----------------------------------------------------------------------------------------------

    def note_id(self, half: HalfMessage) -> int | None:
        """To be told of every valid record of HALF first, those below the watermark that a take-over reads included.

        The offset of its first when it is a copy (`copies`), which then is `read_malformed`.
        """
        return self._recent.note(half.offset, half.transaction_id, half.born)

    def read(self, half: HalfMessage) -> bool:
        """Take in the next half message. True when it is open, so that its body will be needed."""
        offset, born = half.offset, half.born
        if not self._enter(offset, half.size):
            return False
        # A row of a take-over lies below what is read.
        entry = self._entries.get_object(offset)
        if entry is None:
            if offset in self._outcomes:
                return False
            entry = self._entry_of(half)
            self._entries.add(entry)
            # One that will be parked before its first check is scheduled then: most messages are long finished by that
            # time, and a schedule is not searched for those that are.
            if entry.next_due <= born + self._park_after:
                self.timers.schedule_first(entry)
        # A body is not kept for days.
        return entry.state is not TransactionState.DISCARDED and entry.state is not TransactionState.SCHEDULED

    def why_not_read(self, half: HalfMessage) -> str | None:
        """Why a half message is to be set aside instead of read, though it is well formed; None when it is not.

        What was taken in before, by a worker that allowed more, stays.
        """
        if half.deliver_at is None or half.offset in self._entries or half.offset in self._outcomes:
            return None
        return self.policy.problem_of_delay(half.born, half.deliver_at)

    def _entry_of(self, half: HalfMessage) -> HalfEntry:
        born, immunity = half.born, half.immunity
        next_due = born + self._first_check if immunity is None else self.policy.first_check(born, immunity)
        # By position: naming the arguments takes three times as long.
        entry = HalfEntry(half.offset, half.transaction_id, half.group, half.real_topic, born, half.size, next_due)
        if half.messages is not None:
            entry = entry._replace(messages=half.messages)
        return entry if half.deliver_at is None else entry._replace(deliver_at=half.deliver_at)

    def _is_open(self, offset: int) -> bool:
        return offset in self._entries or (offset in self.fresh and self.fresh.open_at(offset) is not None)

    def read_malformed(self, offset: int, size: int) -> bool:
        """Take in a malformed record of HALF. True when it has not been set aside yet."""
        if not self._enter(offset, size) or offset in self._outcomes:
            return False
        self._malformed.add(offset)
        return True

    def advance_reader(self, position: int) -> None:
        """The log has no more records below this offset (what is missing are transaction markers of strangers).

        Nothing may be fresh.
        """
        self.half_position = max(self.half_position, position)

    def _enter(self, offset: int, size: int) -> bool:
        if offset < self.half_position:
            return False
        self.half_position = offset + 1
        self._window.append((offset, size))
        self._window_bytes += size
        return True

    # --- what is fresh ----------------------------------------------------------------------------------------------

    @property
    def read_position(self) -> int:
        """HALF offset behind all that was read."""
        return self.fresh.stop if self.fresh else self.half_position

    def take_fresh(self, halves: FreshHalves) -> bool:
        """Take in the next half messages, instead of `note_id` and `read` for each; False when it must be those."""
        if halves.start != self.read_position or halves.start < self._restored_to:
            return False
        if not self._recent.note_all(halves.start, [name or b"" for name in halves.ids], halves.births):
            return False
        self.fresh.extend(halves)
        self._entries.count_fresh(halves)
        return True

    def fresh_until(self, now: int) -> int:
        """HALF offset below which what is fresh is of concern at this time (ms)."""
        return self.fresh.stop if self.must_park else self.fresh.older_than(now - self._fresh_for)

    def enter_fresh(self, until: int) -> list[HalfMessage]:
        """Those below this offset are fresh no more, as if they were read now. The bodies of these will be needed."""
        fresh, entered = self.fresh, []
        while fresh and fresh.first < until:
            offset, size = fresh.first, fresh.size_of(fresh.first)
            half = fresh.enter()
            if half is None:
                self._enter(offset, size)
                continue
            self._entries.uncount_fresh(half.group, (half.born,))
            self.read(half)
            entered.append(half)
        return entered

    def _finish_fresh(self, offsets: Collection[int], outcome: Outcome) -> None:
        fresh, start = self.fresh, self.fresh.start
        envelopes, births = fresh.envelopes, fresh.births
        group = envelopes[next(iter(offsets)) - start].group
        # Those of one END record are all of its group.
        self._entries.uncount_fresh(group, [births[offset - start] for offset in offsets])
        self._outcomes.update(dict.fromkeys(offsets, outcome))
        fresh.finish(offsets)

    def _pass_fresh(self) -> None:
        """Nothing is in the window: the low watermark moves over what is finished at the front."""
        fresh, finished = self.fresh, self._outcomes.pop
        offset, stop = fresh.first, fresh.stop
        while offset < stop and (outcome := finished(offset, None)) is not None:
            self._remembered.note(offset, outcome)
            offset += 1
        fresh.first = self.half_position = offset

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """Every half message below it is finished or parked."""
        return self._window[0][0] if self._window else self.half_position

    @property
    def recent_start(self) -> int:
        """HALF offset from which a take-over must read, to recognise the copies that this queue would."""
        start = self._recent.start
        return self.watermark if start is None else min(start, self.watermark)

    def outcome(self, offset: int) -> Outcome | None:
        """How a message at or above the watermark was finished; None for an open one."""
        return self._outcomes.get(offset)

    def open_entries(self) -> Iterator[HalfEntry]:
        yield from self._entries
        for half in filter(None, map(self.fresh.open_at, range(self.fresh.first, self.fresh.stop))):
            yield self._entry_of(half)

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
            self.read_position - watermark > self.policy.park_after_records
            or self._window_bytes + self.fresh.bytes - passed_bytes > self.policy.park_after_bytes
        )

    @property
    def must_park(self) -> bool:
        """Whether something has to be parked before more of HALF may be read."""
        return self.lags_behind(self.watermark, 0)

    @property
    def reads_far_ahead(self) -> bool:
        """Whether so much is read and unfinished that more of it might soon have to be parked."""
        policy = self.policy
        return (
            2 * (self.read_position - self.watermark) > policy.park_after_records
            or 2 * (self._window_bytes + self.fresh.bytes) > policy.park_after_bytes
        )

    def counts(self) -> Mapping[TransactionState, int]:
        """Open messages by state."""
        return self._entries.counts()

    def open_counts(self) -> OpenCounts:
        """Open messages by group, state and age; for any thread."""
        return self._entries.open_counts()

    # --- what is due ------------------------------------------------------------------------------------------------

    def next_due(self, until: int | None = None) -> int | None:
        """The earliest time at which something is due, or None. Checks of a dead group are due all the same.

        With `until`, None may also say that nothing is due by then: quicker, as what is due later is not looked at.
        """
        if self._malformed:
            return 0
        heads = self.timers.heads(until)
        # The first one that holds the watermark back is due to be parked, and those behind it follow.
        passed_bytes = 0
        for offset, size in self._window:
            entry = self._entries.get(offset)
            if entry is not None and not entry.parked:
                lags = self.lags_behind(offset, passed_bytes)
                heads.append(0 if lags else entry.born + self.policy.effective_park_after)
                break
            passed_bytes += size
        else:
            if self.fresh:
                lags = self.lags_behind(self.half_position, passed_bytes)
                heads.append(0 if lags else self.fresh.births[self.fresh.first - self.fresh.start] + self._fresh_for)
        return min(heads, default=None)

    # --- applying what Kafka has committed --------------------------------------------------------------------------

    def finish(self, offsets: Collection[int], outcome: Outcome) -> None:
        """Messages are finished for good (or discarded without a way back: malformed ones). `advance` comes after."""
        watermark, outcomes, remove = self.watermark, self._outcomes, self._entries.remove
        if self.fresh and (fresh := [offset for offset in offsets if offset >= self.half_position]):
            self._finish_fresh(fresh, outcome)
            offsets = [offset for offset in offsets if offset < self.half_position]
        for offset in offsets:
            remove(offset)
            if offset >= watermark:
                outcomes[offset] = outcome
            else:
                self._remembered.note(offset, outcome)
        self._malformed.difference_update(offsets)

    def update(self, entry: HalfEntry) -> None:
        """An open entry has changed and is scheduled anew. It was parked by the same Kafka transaction."""
        before = self._entries.known(entry.offset)
        self._entries.put(entry)
        if not before.parked or before.state is not entry.state:
            self.timers.schedule_expiry(entry)
        self.timers.schedule(entry)

    def advance(self) -> None:
        """Move the low watermark over everything finished or parked, and forget what lies below it."""
        window, finished = self._window, self._outcomes.pop
        while window:
            offset, size = window[0]
            outcome = finished(offset, None)
            if outcome is not None:
                self._remembered.note(offset, outcome)
            elif self._may_pass(offset):
                self._entries.settle(offset)
            else:
                break
            window.popleft()
            self._window_bytes -= size
        if self.fresh and not window:
            self._pass_fresh()
        self.ops.advance(self.watermark)

    def _may_pass(self, offset: int) -> bool:
        entry = self._entries.get(offset)
        return entry.parked if entry is not None else offset not in self._malformed
