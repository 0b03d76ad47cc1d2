"""Batches of END commands that share a record: bookkeeping, without Kafka."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

from txbridge.client.base import process
from txbridge.client.base.contained import ContainedFuture
from txbridge.client.errors import EndTransactionError
from txbridge.core.decision_record import MAX_ENTRIES, MAX_REMARK, DecisionEntry, Source

#: Most encoded bytes of a record. Kafka's default max.message.bytes is 1 MiB. Half of that leaves room for settings of
#: other producers, and a thousand entries without remarks (46 KB as a rule, never above 80 KB) always fit.
MAX_RECORD_BYTES = 500_000
#: Most bytes of the half messages that a record names, about what the worker delivers in one Kafka transaction. A
#: record that names more would be delivered in several transactions, and nothing would be gained.
MAX_NAMED_BYTES = 16 * 1024 * 1024

#: Number of waiting commands that make a record leave at once. At full speed they come while the last record is in
#: flight. With many more, everything behind the client would work in bursts.
ENOUGH = 200

#: Bytes of an entry without a remark: two numbers of up to 19 digits, the transaction id, the decision and separators.
_ENTRY_BYTES = 80


def most_bytes(entry: DecisionEntry) -> int:
    """Bytes that this entry takes at most in a record."""
    return _ENTRY_BYTES if entry.remark is None else _ENTRY_BYTES + MAX_REMARK


class Ticket:
    """An END command on its way. `size` is the size of its half message in bytes. Thread-safe.

    A Future costs more than all other work for a command, and few callers need one. So it is made on request.
    """

    __slots__ = ("_error", "_future", "_hurry", "_process", "_settled", "entry", "size")

    def __init__(self, entry: DecisionEntry, size: int, hurry: Callable[[], object] | None = None) -> None:
        self.entry = entry
        self.size = size
        self._hurry = hurry
        self._settled = False
        self._process = process.generation()
        self._error: EndTransactionError | None = None
        self._future: Future[None] | None = None

    def as_future(self) -> Future[None]:
        """Return a future that resolves when the command is settled. It cannot be cancelled, as the command is sent."""
        if not self._settled and self._process != process.generation():
            self.settle_with(
                EndTransactionError("the END is sent by the parent of this forked process: only the parent knows")
            )
        with _FUTURES:
            if self._future is None:
                self._future = ContainedFuture()
                self._future.set_running_or_notify_cancel()
                if self._settled:
                    _resolve(self._future, self._error)
            return self._future

    def leave_soon(self) -> None:
        """Let the command leave at once, because a caller is about to wait for it."""
        if self._hurry is not None and not self._settled:
            self._hurry()

    def settle_with(self, error: EndTransactionError | None = None) -> None:
        """Settle the command when Kafka has it, or when it was given up. To be called once."""
        settle_all((self,), error)


def settled_ticket(entry: DecisionEntry, error: EndTransactionError | None = None) -> Ticket:
    """The ticket of a command that is not on its way, such as a decision without a half message."""
    ticket = Ticket(entry, 0)
    ticket.settle_with(error)
    return ticket


#: Lock for the futures of all tickets. It is held only for a moment.
_FUTURES = process.lock()


def settle_all(tickets: Collection[Ticket], error: EndTransactionError | None = None) -> None:
    """Settle commands that Kafka has, or that were given up. To be called once for each."""
    with _FUTURES:
        for ticket in tickets:
            ticket._settled = True  # noqa: SLF001
            if error is not None:
                # One for each. If several threads raise the same one, it collects the traces of all of them.
                ticket._error = EndTransactionError(str(error), error.cause)  # noqa: SLF001
        awaited = [(future, ticket._error) for ticket in tickets if (future := ticket._future) is not None]  # noqa: SLF001
    # Not under the lock, because callbacks are code of the application.
    for future, why in awaited:
        _resolve(future, why)


def _resolve(future: Future[None], error: EndTransactionError | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


@dataclass(slots=True, eq=False)
class Lane:
    """Commands of one half partition, source and group, which may share records. One record at a time is in flight.

    So commands stand in END in the order in which they were given, whatever is retried.
    """

    partition: int
    source: Source
    #: Name of the reply to its one command, which shares its record with no other.
    reply: str | None = None
    #: Of a sender for several groups, whose lanes exist as long as they have commands.
    group: str = ""
    waiting: deque[Ticket] = field(default_factory=deque)
    #: Commands of the record that is in flight.
    in_flight: list[Ticket] = field(default_factory=list)
    #: Whether a caller waits for a command of the next record.
    is_hurried: bool = False
    given: int = 0
    settled: int = 0

    @property
    def is_urgent(self) -> bool:
        """Whether the next record does not wait for the others."""
        return self.is_hurried or len(self.waiting) >= ENOUGH


class DecisionQueue:
    """All lanes. Not thread-safe. Times are seconds by the clock of the caller.

    The records of all lanes leave together, `interval` seconds apart at least, unless a lane is urgent. A record costs
    client, Kafka and worker the same, however many commands are in it. A ticket calls `hurry` when a caller is about to
    wait for it.
    """

    def __init__(self, interval: float, hurry: Callable[[], object] | None = None) -> None:
        self._interval = interval
        self._hurry = hurry
        #: Earliest time (s) of the next records that are not urgent.
        self._next_tick = 0.0
        self._lanes: dict[tuple[int, Source, str | None, str], Lane] = {}
        #: Lanes with commands and nothing in flight.
        self._ready: list[Lane] = []
        #: Commands that are neither acknowledged nor given up.
        self.unsettled = 0
        #: Whether the last added command makes a record due that was not due, or due sooner.
        self.has_news = False

    def add_command(
        self,
        partition: int,
        source: Source,
        entry: DecisionEntry,
        size: int,
        reply: str | None = None,
        group: str = "",
        *,
        is_hurried: bool = False,
    ) -> Ticket:
        """Queue a command. The caller of DecisionQueue settles the tickets of each record.

        One that `is_hurried` does not wait for those of other lanes.
        """
        lane = self._lanes.get((partition, source, reply, group))
        if lane is None:
            lane = self._lanes[partition, source, reply, group] = Lane(partition, source, reply, group)
        ticket = Ticket(entry, size, self._hurry)
        is_ready = not lane.waiting and not lane.in_flight
        # A signal may interrupt this at any call. What is counted must be in the queue, or `unsettled` never becomes 0.
        lane.given += 1
        self.unsettled += 1
        try:
            if is_ready:
                self._ready.append(lane)
            lane.waiting.append(ticket)
        except BaseException:
            if not lane.waiting or lane.waiting[-1] is not ticket:
                lane.waiting.append(ticket)
            raise
        is_first = is_ready and len(self._ready) == 1
        lane.is_hurried |= is_hurried
        self.has_news = is_first or (not lane.in_flight and (is_hurried or len(lane.waiting) == ENOUGH))
        return ticket

    @property
    def next_due(self) -> float | None:
        """Time (s) at which `start_records` starts some. None while every lane is empty or has a record in flight."""
        if not self._ready:
            return None
        return 0.0 if any(lane.is_urgent for lane in self._ready) else self._next_tick

    def start_records(self, now: float) -> list[Lane]:
        """Begin the next record of each lane that has none in flight and may send. Each must be finished."""
        if now < self._next_tick:
            # These do not move the time, or a lane with many commands would keep those of the others waiting.
            due = [lane for lane in self._ready if lane.is_urgent]
            self._ready = [lane for lane in self._ready if not lane.is_urgent]
        else:
            due, self._ready = self._ready, []
            if due:
                self._next_tick = now + self._interval
        for lane in due:
            lane.is_hurried = False
            lane.in_flight = _take_first(lane.waiting)
        return due

    def hurry_all(self) -> None:
        """Let all commands that were given by now leave without waiting for others."""
        for lane in self._lanes.values():
            lane.is_hurried = bool(lane.waiting)

    def finish_record(self, lane: Lane) -> list[Ticket]:
        """Let a lane go on whose record is acknowledged or given up. Returns the tickets, which the caller settles."""
        tickets, lane.in_flight = lane.in_flight, []
        lane.settled += len(tickets)
        self.unsettled -= len(tickets)
        if lane.waiting:
            self._ready.append(lane)
        elif lane.reply is not None or lane.group:
            del self._lanes[lane.partition, lane.source, lane.reply, lane.group]
        return tickets

    def abandon_all(self) -> list[Ticket]:
        """Give up and return all waiting commands. Records in flight must still be finished."""
        given_up: list[Ticket] = []
        for lane in self._lanes.values():
            given_up += lane.waiting
            lane.settled += len(lane.waiting)
            lane.waiting.clear()
        self._ready.clear()
        self.unsettled -= len(given_up)
        return given_up

    def set_mark(self) -> list[tuple[Lane, int]]:
        """Return a mark of everything given so far, for `left_of`."""
        return [(lane, lane.given) for lane in self._lanes.values()]

    @staticmethod
    def left_of(mark: list[tuple[Lane, int]]) -> int:
        """Return how many of the commands given before the mark are not settled. Lanes settle in order."""
        return sum(max(0, given - lane.settled) for lane, given in mark)


def _take_first(waiting: deque[Ticket]) -> list[Ticket]:
    """Take the first tickets that fit into one record; at least one, however large its message."""
    taken: list[Ticket] = []
    record_bytes = named_bytes = 0
    while waiting and len(taken) < MAX_ENTRIES:
        ticket = waiting[0]
        record_bytes += most_bytes(ticket.entry)
        named_bytes += ticket.size
        if taken and (record_bytes > MAX_RECORD_BYTES or named_bytes > MAX_NAMED_BYTES):
            break
        taken.append(waiting.popleft())
    return taken
