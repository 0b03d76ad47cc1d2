"""HalfQueue: all that a worker knows about one partition of HALF. Pure: no I/O, and the time is passed in.

It changes in only two ways. Reading HALF adds messages. Everything else is planned first (`plan.draft.Draft`, which
changes nothing here), written to Kafka in one transaction, and then applied. So an aborted transaction leaves no trace,
as in Kafka's own transaction coordinator (prepare, append, complete).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import OpPositions
from txbridge.core.dedup import DeduplicationWindow, Finished, KnownId, Remembered, RememberedIds
from txbridge.core.fresh_halves import FreshHalves
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.open_messages import OpenMessages
from txbridge.core.states import Outcome, TransactionState
from txbridge.core.timers import Timers

#: Clocks of brokers may differ by this much (ms), and the brokers' time may be known too late by as much after a slow
#: Kafka transaction. Shorter than the first wait of a message (6 s by default), it does no harm. Beyond it, a clock was
#: set, or another broker leads.
_STEP_MS = 5_000


class HalfQueue:
    """State of one half partition.

    Half offsets that were read, at or above the low watermark, are in the window or, behind it, fresh. In the window an
    offset is open (an entry), finished (an outcome), or malformed and not in the discard topic yet. A copy counts as
    malformed. A fresh offset is open, or finished (an outcome). Below the low watermark only parked entries are known
    for certain. The last outcomes are remembered, so that a late decision gets the right reason of refusal.
    """

    def __init__(
        self, policy: CheckPolicy, *, watermark: int = 0, next_end: int = 0, next_entry: int = 0, next_op: int = 0
    ) -> None:
        self.policy = policy
        # The policy's answer for nearly every message, computed once.
        self._park_after, self._first_check = policy.effective_park_after, policy.first_check(0, None)
        #: Next END offset to apply, and index of the first entry there that is not applied yet.
        self.next_end, self.next_entry = next_end, next_entry
        #: HALF offset behind the window, where the fresh half messages begin.
        self.half_position = watermark
        #: Half messages that were read, and that are neither due for a check nor to be parked.
        self.fresh = FreshHalves()
        # Age (ms) at which a half message is not fresh any more: its first check is due, or it is to be parked.
        self._fresh_for = min(self._first_check, self._park_after)
        # The brokers' time (ms) as `note_time` was given it last, and the latest birth since births went back.
        self._now, self._latest_birth = sys.maxsize, 0
        # HALF offset below which everything is to be parked, because births or the brokers' time went back there.
        self._park_below = 0
        # HALF offset below which a take-over may know entries or outcomes of messages that are still to be read.
        self._restored_to = watermark
        self._entries = OpenMessages()
        self._outcomes: dict[int, Finished] = {}
        self._remembered = Remembered()
        #: How a message below the watermark was finished, if this process saw it and still remembers it.
        self.remembered = self._remembered.get
        self._finished_ids = RememberedIds()
        self._malformed: set[int] = set()
        self._recent = DeduplicationWindow(at_least=policy.recognise_at_least, is_open=self._is_open)
        #: Offset of the half message that an offset means: for a copy, that of the first record.
        self.first_of = self._recent.first_of
        #: The open message at an offset, or None.
        self.entry = self._entries.get
        #: Open messages by group, state and age; for any thread.
        self.open_counts = self._entries.open_counts
        #: Offsets at or above the watermark that were read and are not fresh, with their sizes, in order.
        self.window: deque[tuple[int, int]] = deque()
        self._window_bytes = 0
        self.timers = Timers(policy, self._entries)
        #: Positions of the OP records that a take-over needs.
        self.ops = OpPositions(next_op)

    def restore_parked(self, parked: ParkedEntries) -> None:
        """Take in the parked entries of OFFSET, before anything is read. `parked` is empty afterwards."""
        rows, others = parked.release()
        above = rows.split_off(self.half_position)
        self._entries.adopt_rows(rows)
        self.timers.load_rows(rows)
        for entry in (*above, *others):
            self._entries.put_entry(entry)
            self.timers.schedule_next(entry)
            self.timers.schedule_expiry(entry)
            self._restored_to = max(self._restored_to, entry.offset + 1)

    def restore_op(self, op_offset: int, outcome: Outcome, half_offsets: Collection[int]) -> None:
        """Take in one OP record, in the order of OP, after the parked entries and before anything is read."""
        watermark = self.half_position
        named = [offset for offset in half_offsets if offset >= watermark]
        self._restored_to = max(self._restored_to, max(named, default=-1) + 1)
        for offset in named:
            # A discarded message is open for a resume. So its parked entry counts, not the OP record.
            if offset not in self._entries:
                self._outcomes[offset] = Finished(outcome)
        self.ops.restore_record(op_offset, half_offsets, is_needed=bool(named))

    def note_id(self, half: HalfMessage) -> int | None:
        """Note the id of a valid record of HALF, before `read_half`. A take-over also notes those below the watermark.

        Returns the offset of the first record if this one is a copy (`dedup`). The caller passes a copy to
        `read_malformed`.
        """
        return self._recent.note_id(half.offset, half.transaction_id, half.born)

    def read_half(self, half: HalfMessage) -> bool:
        """Take in the next half message. True if its body is to be kept, because it is open and may soon be needed."""
        born = half.born
        if half.offset < self.half_position:
            return False
        if born > self._latest_birth:
            self._latest_birth = born
        elif born < self._latest_birth - _STEP_MS:
            self._latest_birth, self._park_below = born, half.offset
        return self._read_half(half)

    def _read_half(self, half: HalfMessage) -> bool:
        offset = half.offset
        self._pass_offset(offset, half.size)
        # Not a row: the rows of a take-over lie below the offsets that are still to be read.
        entry = self._entries.get_object(offset)
        if entry is None:
            if (finished := self._outcomes.get(offset)) is not None:
                self._outcomes[offset] = Finished(finished.outcome, half.group)
                return False
            entry = self._entry_of(half)
            self._entries.add_entry(entry)
            self.timers.schedule_first(entry)
        # Discarded and scheduled messages may wait for days, so their bodies are not kept.
        return entry.state is not TransactionState.DISCARDED and entry.state is not TransactionState.SCHEDULED

    def why_not_read(self, half: HalfMessage) -> str | None:
        """The reason to discard a well-formed half message instead of reading it, or None.

        A message that a worker with a longer limit has taken in before stays.
        """
        latest = half.deliver_at if half.last_time is None else half.last_time
        if latest is None or half.offset in self._entries or half.offset in self._outcomes:
            return None
        return self.policy.problem_of_delay(half.born, latest)

    def _entry_of(self, half: HalfMessage) -> HalfEntry:
        born, immunity = half.born, half.immunity
        # A birth in the future is from a clock that is, or was, ahead. Then the wait counts from now.
        since = born if born <= self._now + _STEP_MS else self._now
        next_due = since + self._first_check if immunity is None else self.policy.first_check(since, immunity)
        return HalfEntry.of_half(half, next_due)

    def _is_open(self, offset: int) -> bool:
        return offset in self._entries or (offset in self.fresh and self.fresh.open_at(offset) is not None)

    def read_malformed(self, offset: int, size: int) -> bool:
        """Take in a malformed record of HALF. True if it still has to be copied to the discard topic."""
        if not self._pass_offset(offset, size) or offset in self._outcomes:
            return False
        self._malformed.add(offset)
        return True

    def advance_reader(self, position: int) -> None:
        """Note that HALF has no more records below this offset. The gap holds transaction markers of other producers.

        Nothing may be fresh.
        """
        self.half_position = max(self.half_position, position)

    def _pass_offset(self, offset: int, size: int) -> bool:
        if offset < self.half_position:
            return False
        self.half_position = offset + 1
        self.window.append((offset, size))
        self._window_bytes += size
        return True

    @property
    def read_position(self) -> int:
        """HALF offset behind all records that were read."""
        return self.fresh.stop if self.fresh else self.half_position

    def take_fresh(self, halves: FreshHalves) -> bool:
        """Take in the next half messages together. If False, the caller uses `note_id` and `read_half` for each."""
        births = halves.births
        if (
            halves.start != self.read_position
            or halves.start < self._restored_to
            or births[0] < self._latest_birth
            or births[-1] > self._now + _STEP_MS
            or births != sorted(births)
        ):
            return False
        if not self._recent.note_all(halves.start, [name or b"" for name in halves.ids], halves.births):
            return False
        self._latest_birth = births[-1]
        self.fresh.append_halves(halves)
        self._entries.count_fresh(halves)
        return True

    def fresh_until(self, now: int) -> int:
        """HALF offset below which fresh half messages have to enter the window at this time (ms)."""
        fresh = self.fresh
        is_at_once = self.must_park or fresh.first < self._park_below
        return fresh.stop if is_at_once else fresh.older_than(now - self._fresh_for)

    def enter_fresh(self, until: int) -> list[HalfMessage]:
        """Move fresh messages below this offset into the window. Returns the open ones: their bodies are needed."""
        fresh, entered = self.fresh, []
        while fresh and fresh.first < until:
            offset, size = fresh.first, fresh.size_of(fresh.first)
            half = fresh.enter_first()
            if half is None:
                self._pass_offset(offset, size)
                continue
            self._entries.uncount_fresh(half.group, (half.born,))
            self._read_half(half)
            entered.append(half)
        return entered

    def _finish_fresh(self, offsets: Collection[int], outcome: Outcome) -> None:
        fresh, start = self.fresh, self.fresh.start
        envelopes, births = fresh.envelopes, fresh.births
        group = envelopes[next(iter(offsets)) - start].group
        # One END record decides messages of one group only.
        self._entries.uncount_fresh(group, [births[offset - start] for offset in offsets])
        self._outcomes.update(dict.fromkeys(offsets, Finished(outcome, group)))
        fresh.free_finished(offsets)

    def _pass_fresh(self) -> None:
        """Move the low watermark over finished fresh messages. The window is empty."""
        fresh, finished = self.fresh, self._outcomes.pop
        offset, stop = fresh.first, fresh.stop
        while offset < stop and (outcome := finished(offset, None)) is not None:
            self._remembered.note_outcome(offset, outcome)
            offset += 1
        fresh.first = self.half_position = offset

    @property
    def watermark(self) -> int:
        """The low watermark: every half message below it is finished or parked."""
        return self.window[0][0] if self.window else self.half_position

    @property
    def recent_start(self) -> int:
        """HALF offset from which a take-over must read, to recognise the same copies as this queue."""
        start = self._recent.start
        return self.watermark if start is None else min(start, self.watermark)

    def outcome_of(self, offset: int) -> Outcome | None:
        """Outcome of a message at or above the watermark; None if it is open."""
        finished = self._outcomes.get(offset)
        return None if finished is None else finished.outcome

    def finish_of(self, offset: int) -> Finished | None:
        """How a message was finished, if that is known."""
        return self._outcomes.get(offset) or self.remembered(offset)

    def owner_of(self, offset: int) -> tuple[str | None, str | None]:
        """Transaction id and group of a half message. None stands for what is not known, or not any more."""
        if (entry := self.entry(offset)) is not None:
            return entry.transaction_id, entry.group
        finished = self.finish_of(offset)
        return self._recent.id_at(offset), None if finished is None else finished.group

    @property
    def malformed(self) -> frozenset[int]:
        """Offsets of malformed records of HALF that still have to be copied to the discard topic."""
        return frozenset(self._malformed)

    def find_id(self, transaction_id: str) -> KnownId | None:
        """An open message, or one of the last ones, by its id."""
        if (known := self._finished_ids.find_id(transaction_id)) is not None:
            return known
        offset = self._recent.find_id(transaction_id)
        if offset is None and (offset := self._entries.find_id(transaction_id)) is None:
            return None
        return KnownId(offset, self.finish_of(offset))

    def lags_behind(self, watermark: int, passed_bytes: int) -> bool:
        """Whether an open message at this offset has to be parked, so that the watermark does not stay there.

        A take-over would read too much again, or messages behind it may be older. `passed_bytes`: bytes in the window
        below it.
        """
        return watermark < self._park_below or self._is_much_behind(watermark, passed_bytes)

    def _is_much_behind(self, watermark: int, passed_bytes: int) -> bool:
        return (
            self.read_position - watermark > self.policy.park_after_records
            or self._window_bytes + self.fresh.bytes - passed_bytes > self.policy.park_after_bytes
        )

    @property
    def must_park(self) -> bool:
        """Whether something has to be parked before more of HALF may be read."""
        return self._is_much_behind(self.watermark, 0)

    @property
    def reads_far_ahead(self) -> bool:
        """Whether so much is read and not finished that messages might soon have to be parked."""
        policy = self.policy
        return (
            2 * (self.read_position - self.watermark) > policy.park_after_records
            or 2 * (self._window_bytes + self.fresh.bytes) > policy.park_after_bytes
        )

    def iter_open(self) -> Iterator[HalfEntry]:
        """Open messages: nearly in the order of offsets, so that the first ones are among the oldest."""
        yield from self._entries
        for offset in range(self.fresh.first, self.fresh.stop):
            if (half := self.fresh.open_at(offset)) is not None:
                yield self._entry_of(half)

    def iter_refused(self) -> Iterator[HalfEntry]:
        """Messages with an error: those that cannot be delivered, and those that cannot be asked about."""
        return (entry for entry in self._entries.objects() if entry.error is not None)

    def next_due(self, until: int | None = None) -> int | None:
        """The earliest time (ms) at which something is due, or None. Checks of a group that is not live count as well.

        With `until`, None may also mean that nothing is due by then. That is quicker, because later items are not
        looked at.
        """
        if self._malformed:
            return 0
        heads = self.timers.list_heads(until)
        # The first entry that holds the watermark back is the next to be parked. Those behind it follow.
        passed_bytes = 0
        for offset, size in self.window:
            entry = self._entries.get(offset)
            if entry is not None and not entry.parked:
                lags = self.lags_behind(offset, passed_bytes)
                heads.append(0 if lags else entry.born + self._park_after)
                break
            passed_bytes += size
        else:
            if self.fresh and self.lags_behind(self.half_position, passed_bytes):
                heads.append(0)
        if (oldest := self.fresh.oldest_birth) is not None:
            heads.append(oldest + self._fresh_for)
        return min(heads, default=None)

    def note_time(self, now: int) -> None:
        """Note the brokers' time (ms), or a little later, before every turn.

        When it has gone back, a clock was ahead. Due times that were computed by it are brought forward, so that no
        message waits longer than if the clock had been right. The first call after a take-over does the same, as the
        due times in OFFSET are from another worker.
        """
        if now < self._now - _STEP_MS:
            self._park_below = self.read_position
            self.timers.bring_forward(now, self._now - now)
        self._now = now

    def finish_messages(self, offsets: Collection[int], outcome: Outcome) -> None:
        """Note messages that are finished, or discarded and cannot be resumed. Then comes `advance_watermark`."""
        watermark, outcomes, remove = self.watermark, self._outcomes, self._entries.remove_entry
        if self.fresh and (fresh := [offset for offset in offsets if offset >= self.half_position]):
            self._finish_fresh(fresh, outcome)
            offsets = [offset for offset in offsets if offset < self.half_position]
        finished = Finished(outcome)
        for offset in offsets:
            if (group := remove(offset)) != finished.group:
                finished = Finished(outcome, group)
            if offset >= watermark:
                outcomes[offset] = finished
            else:
                self._remembered.note_outcome(offset, finished)
        self._malformed.difference_update(offsets)

    def note_waited(self, entries: Iterable[HalfEntry], outcome: Outcome) -> None:
        """Remember the ids of finished messages that were scheduled or held until now."""
        for entry in entries:
            known = KnownId(entry.offset, Finished(outcome, entry.group), entry.delivered or 0)
            self._finished_ids.note_finished(entry.transaction_id, known)

    def update_entry(self, entry: HalfEntry) -> None:
        """Replace an entry that has changed, and schedule it anew. The same Kafka transaction has parked it."""
        before = self._entries.get_open(entry.offset)
        self._entries.put_entry(entry)
        if not before.parked or before.state is not entry.state:
            self.timers.schedule_expiry(entry)
        self.timers.schedule_next(entry)

    def advance_watermark(self) -> None:
        """Move the low watermark over all finished or parked messages, and free their places in the window."""
        window, finished = self.window, self._outcomes.pop
        while window:
            offset, size = window[0]
            outcome = finished(offset, None)
            if outcome is not None:
                self._remembered.note_outcome(offset, outcome)
            elif self._may_pass(offset):
                self._entries.settle_entry(offset)
            else:
                break
            window.popleft()
            self._window_bytes -= size
        if self.fresh and not window:
            self._pass_fresh()
        self.ops.advance_start(self.watermark)

    def _may_pass(self, offset: int) -> bool:
        entry = self._entries.get(offset)
        return entry.parked if entry is not None else offset not in self._malformed
