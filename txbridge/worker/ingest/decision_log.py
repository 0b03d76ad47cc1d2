"""END of one partition, in order and without gaps, from Faust's events or from a reader of the owner.

Faust may skip events, repeat them, and start at the offset that it has committed. So an event is taken only when it is
exactly the next one. An event with a higher offset shows that one was missed. The owner then reads END itself until
Faust's events are *level* with it (see DecisionInbox).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from txbridge.core.checkpoint import Mark, digest
from txbridge.core.decision_record import DecisionEvent, DecisionRecord, parse_end
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.plan.effects import MalformedRecord
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.headers import headers_of, offset_of
from txbridge.kafka.partition_reader import STABLE_TIMEOUT_S
from txbridge.log import get_logger
from txbridge.worker.partition_context import PartitionState

#: Most events, and bytes of their values, that may wait. Beyond that the owner reads END itself when it has time: that
#: is the back-pressure.
CAPACITY = 2_000
CAPACITY_BYTES = 8 * 1024 * 1024
#: Bytes of kept events that are worth a Kafka transaction at once: some 5,000 decisions. To commit them takes longer
#: than commit_interval lasts by default.
_ENOUGH_BYTES = 256 * 1024
#: Most records of END, and bytes of their values, that may wait for their transaction: enough for several batches,
#: little enough to hold in memory.
_WAITING = 2_000
_WAITING_BYTES = 16 * 1024 * 1024
#: How often the end of END is compared with the last record. It only shows, when all else is idle, that Kafka is away,
#: that END was cut, or that Faust is stuck: the owner is told when Faust skips records. A question costs Kafka and this
#: process 2 ms of processor time. Asked every second, they were a tenth of what an idle worker and its Kafka take.
_COMPARE_EVERY_S = 5.0
#: The same while something waits for a record, and after an answer that END has one without an event. A Faust that is
#: stuck has more of them.
_COMPARE_SOON_S = 1.0
#: Longest wait for a record while the owner reads END itself: nothing else wakes it then, not even its end.
_READ_S = 0.1

_log = get_logger("txbridge.worker")


class DecisionInbox:
    """Events from one writer thread (Faust's event loop) for one reader thread (the owner).

    The inbox is *level* when the next event that Faust offers will be the next one wanted. While it is not level, as at
    the start, it only notes the offset of each event. While it is level it keeps the events, until one does not fit.
    """

    def __init__(
        self,
        outside: Outside = OUTSIDE,
        capacity: int = CAPACITY,
        *,
        next_event: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`next_event` tells the END offset that Faust reads next, or None while it is not known."""
        self._next_event = next_event
        self._outside = outside
        self._capacity = capacity
        self._changed = threading.Condition()
        self._events: deque[DecisionEvent] = deque()
        self._bytes = 0
        self._expected = 0
        self._last_offered: int | None = None
        self._level = False
        self._woken = False
        # Whether Faust may have skipped what follows the last event that it has offered.
        self._has_skipped = False
        # Whether the owner gathers events, and is not woken for each.
        self._gathers = False

    def offer_event(self, event: DecisionEvent) -> None:
        """Take the event if it is the next one. Never blocks."""
        size = len(event.value or b"")
        with self._changed:
            self._last_offered = event.offset
            self._has_skipped = False
            if not self._level or event.offset < self._expected:
                return
            fits = len(self._events) < self._capacity and self._bytes + size <= CAPACITY_BYTES
            if event.offset == self._expected and (fits or not self._events):
                self._events.append(event)
                self._bytes += size
                self._expected += 1
            else:
                self._level = False
            if not self._gathers or self._has_enough():
                self._changed.notify()

    def _has_enough(self) -> bool:
        return self._woken or self._bytes >= _ENOUGH_BYTES or len(self._events) >= self._capacity

    def gather_events(self, seconds: float) -> None:
        """Wait this long while events come in. Ends early once they are worth a Kafka transaction, and by `wake`."""
        until = self._outside.monotonic() + seconds
        with self._changed:
            self._gathers = True
            while not self._has_enough() and (left := until - self._outside.monotonic()) > 0:
                self._outside.wait_for_change(self._changed, left)
            self._gathers = False

    def try_level(self, expected: int, *, at_end: bool) -> bool:
        """Become level if the last event offered was the one before `expected`: then none is missed, unless by a skip.

        At the end of END it is also enough that Faust has not read as far as `expected`. Before the end, the owner
        reads faster than Faust. Returns whether the inbox is level.
        """
        # It is read before the last event offered: what Faust reads meanwhile, it offers afterwards.
        following = self._next_event() if at_end else None
        with self._changed:
            # Until its first event Faust may still begin anywhere, also behind the first record of END.
            is_next = self._last_offered == expected - 1 and not self._has_skipped
            if is_next or (following is not None and max(following, self.offered) <= expected):
                self._expected = expected
                self._level = True
            return self._level

    @property
    def offered(self) -> int:
        """The offset behind the last event that Faust has offered: END reaches at least this far."""
        return 0 if self._last_offered is None else self._last_offered + 1

    def unlevel(self) -> None:
        """Stop keeping events, and wake the owner: END holds a record without an event."""
        with self._changed:
            self._level = False
            self._has_skipped = True
            self._woken = True
            self._changed.notify()

    def clear_events(self) -> None:
        """Drop the kept events, and keep no more."""
        with self._changed:
            self._events.clear()
            self._bytes = 0
            self._level = False

    @property
    def must_read(self) -> bool:
        """Whether the owner must read END itself: not level, and no kept event comes first."""
        with self._changed:
            return not self._level and not self._events

    def wake(self) -> None:
        """Let `take` return early."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def forget_wake(self) -> None:
        """Let the owner gather events again: it has woken up."""
        with self._changed:
            self._woken = False

    def take_events(self, limit: int, timeout: float) -> list[DecisionEvent]:
        """Up to `limit` events; waits at most `timeout` seconds for the first."""
        with self._changed:
            if not self._events and not self._woken and self._level and timeout > 0:
                self._outside.wait_for_change(self._changed, timeout)
            self._woken = False
            taken = [self._events.popleft() for _ in range(min(limit, len(self._events)))]
            self._bytes -= sum(len(event.value or b"") for event in taken)
            return taken


class DecisionLog:
    """Records of END that were read and wait to be applied. For the owner's thread; `known_end` is for any thread."""

    def __init__(self, names: Names, state: PartitionState, inbox: DecisionInbox, outside: Outside = OUTSIDE) -> None:
        #: The records that wait. Others look at them: only `drop_applied` removes them.
        self.waiting: deque[DecisionRecord | MalformedRecord] = deque()
        #: END offset behind the last record that was read, and behind markers that follow it.
        self.position = state.queue.next_end
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._topic = names.end
        self._partition = state.partition
        self._queue, self._gaps = state.queue, state.end_gaps
        # The last record that was read. The mark of it, or of an earlier one.
        self._last: DecisionEvent | None = None
        self._mark = state.checkpoint.marks.get("end")
        self._ends, self._reader = state.ends, state.decision_reader
        # Monotonic time (s) since which END has records that cannot be read.
        self._blocked_since: float | None = None
        self._inbox = inbox
        self._outside = outside
        self._reading = False
        self._compared, self._compare_every = 0.0, _COMPARE_EVERY_S
        self._seen_end = self.position
        # Decisions that were stored while nobody owned the partition came with no event.
        inbox.clear_events()

    @property
    def known_end(self) -> int:
        """END reaches at least this offset. For any thread; does not ask Kafka."""
        return max(self.position, self._seen_end, self._inbox.offered)

    def mark_of_last(self) -> Mark | None:
        """The mark of the last record of END that was read, by this owner or the one before it."""
        last, mark = self._last, self._mark
        if last is not None and (mark is None or last.offset > mark.offset):
            self._mark = Mark(last.offset, digest(None, last.value), None, last.appended)
        return self._mark

    def drop_applied(self) -> None:
        """Remove the records that are applied."""
        waiting, next_end = self.waiting, self._queue.next_end
        while waiting and waiting[0].offset < next_end:
            waiting.popleft()
            self._bytes -= self._sizes.popleft()

    @property
    def is_behind(self) -> bool:
        """Whether more of END is there than was applied, without events: as far as is known without asking Kafka."""
        return bool(self.waiting) or (self._reading and self._seen_end > self.position)

    def take_in_events(self, timeout: float) -> None:
        """Take in what has arrived. Waits at most `timeout` seconds, and only if no record waits already.

        Raises LogGoneError, UnansweredError, KafkaException.
        """
        room = _WAITING - len(self.waiting)
        if room <= 0 or self._bytes >= _WAITING_BYTES:
            return
        if self.waiting:
            timeout = 0.0
        if self._inbox.must_read:
            self._read_records(room, min(timeout, _READ_S))
        else:
            for event in self._inbox.take_events(room, timeout):
                self._add_event(event)
        if self._outside.monotonic() - self._compared > self._compare_every and not self.waiting:
            self._compared = self._outside.monotonic()
            self._compare_ends()

    def compare_soon(self) -> None:
        """Do not wait long for an event that may never come."""
        self._compare_every = _COMPARE_SOON_S

    def _compare_ends(self) -> None:
        end = self._ends.end_from(self._topic, self._partition, self.position, self._compare_every / 2)
        if end is not None:
            self._seen_end = end
            is_missed = end > self.position
            if is_missed:
                self._inbox.unlevel()
            self._compare_every = _COMPARE_SOON_S if is_missed else _COMPARE_EVERY_S
            self._note_blocked(is_missed)

    def _note_blocked(self, is_blocked: bool) -> None:
        """Log once that an open Kafka transaction hides the records behind it, other clients' decisions included."""
        now = self._outside.monotonic()
        if not is_blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif now - self._blocked_since > STABLE_TIMEOUT_S:
            self._blocked_since = float("inf")
            self._gaps.metrics.count_failure("hanging_transaction")
            _log.error(
                "hanging_transaction",
                partition=self._partition,
                error=f"a Kafka transaction stays open in {self._topic}[{self._partition}] at or above offset "
                f"{self.position}: decisions behind it wait. END must not be written in Kafka transactions",
            )

    def _read_records(self, room: int, timeout: float) -> None:
        """Read END without Faust, until Faust's events are level with it. Without events this is the only way."""
        self._inbox.forget_wake()
        if not self._reading:
            self._reader.start(self.position)
            self._reading = True
        messages = self._reader.poll(room, timeout)
        for message in messages:
            try:
                headers = headers_of(message)
            except MalformedRecordError as error:
                event = DecisionEvent(offset_of(message), message.key(), message.value(), ())
                self._append_record(event, self._as_malformed(event, str(error)))
            else:
                appended = message.timestamp()[1]
                self._add_event(DecisionEvent(offset_of(message), message.key(), message.value(), headers, appended))
        if self._reader.position > self.position:
            self._gaps.note_position(self._reader.position)
        self.position = max(self.position, self._reader.position)
        self._seen_end = max(self._seen_end, self._reader.fetched_end())
        if self._inbox.try_level(self.position, at_end=not messages):
            self._reader.stop()
            self._reading = False

    def _add_event(self, event: DecisionEvent) -> None:
        try:
            self._append_record(event, parse_end(event.offset, event.value, event.headers, event.appended))
        except MalformedRecordError as error:
            self._append_record(event, self._as_malformed(event, str(error)))

    def _append_record(self, event: DecisionEvent, record: DecisionRecord | MalformedRecord) -> None:
        if event.offset > self.position:
            self._gaps.note_position(event.offset)
        self._blocked_since = None
        self.waiting.append(record)
        self._sizes.append(len(event.value or b""))
        self._bytes += self._sizes[-1]
        self.position = event.offset + 1
        self._last = event

    def _as_malformed(self, event: DecisionEvent, error: str) -> MalformedRecord:
        return MalformedRecord(self._topic, self._partition, event.offset, event.key, event.value, event.headers, error)
