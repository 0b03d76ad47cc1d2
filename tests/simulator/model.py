"""Model of docs/protocol.md for the checker: the state of each half message, without any code of the worker.

It keeps everything, and it learns only from the logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulator.partition_log import PartitionLog, Stored
from tests.support import message_frames as frames

Where = tuple[int, int]
_COMMANDS = {"resume": "resume", "abandon": "abandon", "cancel": "abandon", "find": "find"}
_DECISIONS = {"8": "commit", "12": "rollback", "0": "unknown"}


@dataclass(slots=True)
class Half:
    """A record of HALF and its fate. `state` is one of the names of the transition table."""

    stored: Stored
    headers: dict[str, str]
    #: A copy of another half message counts as malformed: it is discarded.
    is_malformed: bool
    is_copy: bool = False
    state: str = "pending"
    #: END offset of the decision that counts.
    decided: int | None = None
    checks: int = 0
    #: Earliest time of the next check or discard that the records allow (ms).
    due: int = 0
    #: Time of its last resumption, else of its preparation (ms).
    since: int = 0
    #: Time when the command was stored that has resumed it in the current Kafka transaction (ms).
    resumed_by: int | None = None
    is_set_aside: bool = False
    #: Earliest time of delivery of each message (ms); 0 for none.
    times: list[int] = field(default_factory=list)
    #: Numbers (from 0) of the messages that are delivered.
    delivered: set[int] = field(default_factory=set)
    #: OP offset that names it finished.
    op: int | None = None
    #: Messages to be delivered, in this order.
    messages: list[frames.Framed] = field(default_factory=list)
    #: Whether the half message holds them as frames.
    is_framed: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether its messages name different times."""
        return len(set(self.times)) > 1

    @property
    def deliver_at(self) -> int | None:
        """Time (ms) of the messages to be delivered next, if they name one."""
        return min((self.times[number] for number in self.waiting), default=0) or None

    @property
    def waiting(self) -> list[int]:
        """Numbers of the messages that are not delivered."""
        return [number for number in range(len(self.times)) if number not in self.delivered]

    @property
    def is_finished(self) -> bool:
        return self.state in {"committed", "rolled_back", "abandoned", "forgotten"} or self.is_set_aside


@dataclass(slots=True)
class Entry:
    """One command of END."""

    end: int
    stored: Stored
    half: int
    transaction_id: str
    event: str
    group: str


@dataclass(slots=True)
class Times:
    """The worker's options for times (ms), written down again for the checker."""

    timeout: int
    interval: int
    max_checks: int
    max_age: int
    discard_retention: int
    max_delay: int


def text_headers(stored: Stored) -> dict[str, str]:
    return {name: (value or b"").decode("utf-8", "replace") for name, value in stored.headers}


_OURS = {"TXB_V", "TRAN_MSG", "REAL_TOPIC", "REAL_QID", "PGROUP", "UNIQ_KEY", "CHECK_IMMUNITY_TIME_IN_SECONDS"}
_OURS |= {"TXB_DELIVER_AT", "TXB_BARRIER"}


def _messages(stored: Stored, headers: dict[str, str]) -> list[frames.Framed] | None:
    """The messages in a half message. None when it cannot be read."""
    if "TXB_MESSAGES" in headers:
        return frames.read(stored.value or b"", int(headers["TXB_MESSAGES"]))
    users = [header for header in stored.headers if header[0] not in _OURS]
    partition = int(headers.get("REAL_QID", -1))
    return [frames.Framed(headers.get("REAL_TOPIC", ""), stored.key, stored.value, users, partition)]


@dataclass(slots=True)
class PartitionModel:
    """One half partition."""

    half_log: PartitionLog
    decision_log: PartitionLog
    times: Times
    count: Callable[[str], None]
    halves: dict[int, Half] = field(default_factory=dict)
    #: END offsets of malformed records that were discarded.
    set_aside: set[int] = field(default_factory=set)
    #: Offset of the first record with a transaction id, among all below `_known_to`.
    _firsts: dict[str, int] = field(default_factory=dict)
    _known_to: int = 0

    def first_of(self, offset: int) -> int:
        """The offset of the half message that this one stands for: that of the first with its id if it is a copy."""
        while self._known_to < min(offset + 1, self.half_log.high_watermark):
            stored = self.half_log.entries[self._known_to]
            headers = text_headers(stored)
            transaction_id = headers.get("UNIQ_KEY")
            # A record that is malformed for another reason is no first one.
            if transaction_id is not None and _messages(stored, headers) is not None:
                self._firsts.setdefault(transaction_id, self._known_to)
            self._known_to += 1
        if not 0 <= offset < self._known_to:
            return offset
        stored = self.half_log.entries[offset]
        headers = text_headers(stored)
        if _messages(stored, headers) is None:
            return offset
        return self._firsts.get(headers.get("UNIQ_KEY", ""), offset)

    def half(self, offset: int) -> Half | None:
        """The record of HALF at this offset, or None."""
        found = self.halves.get(offset)
        if found is None and 0 <= offset < self.half_log.high_watermark:
            stored = self.half_log.entries[offset]
            if stored.kind != "data":
                return None
            # Also of an aborted Kafka transaction: HALF is read uncommitted.
            if stored.is_aborted:
                self.count("stranger's aborted half message known")
            headers = text_headers(stored)
            is_copy = self.first_of(offset) != offset
            messages = _messages(stored, headers)
            times = [max(one.deliver_at, int(headers.get("TXB_DELIVER_AT", 0)), 0) for one in messages or []]
            # A client's clock may differ by a minute.
            is_too_late = max(times, default=0) > stored.timestamp + self.times.max_delay + 60_000
            malformed = is_copy or "UNIQ_KEY" not in headers or messages is None or is_too_late
            if messages is None:
                self.count("several messages cut off")
            found = self.halves[offset] = Half(stored, headers, malformed, is_copy, since=stored.appended)
            found.messages, found.is_framed = messages or [], "TXB_MESSAGES" in headers
            immunity = headers.get("CHECK_IMMUNITY_TIME_IN_SECONDS", "")
            wait = int(immunity) * 1000 if immunity.isdigit() else self.times.timeout
            found.due = stored.appended + wait
            found.times = times
        return found

    def find(self, transaction_id: str) -> int | None:
        """The offset of the first half message with this id so far, or None."""
        self.first_of(self.half_log.high_watermark - 1)
        return self._firsts.get(transaction_id)

    def entries(self, end: int) -> list[Entry] | None:
        """The commands of an END record; None when it is malformed."""
        stored = self.decision_log.entries[end]
        if stored.kind != "data" or stored.is_aborted:
            # Markers and aborted records of Kafka transactions decide nothing.
            return []
        headers = text_headers(stored)
        if "PGROUP" not in headers:
            return None
        entries = []
        for line in (stored.value or b"").decode().split("\n"):
            fields = line.split(",")
            source = headers["SOURCE"]
            event = _COMMANDS.get(source) or _DECISIONS[fields[2]]
            half = int(fields[0])
            # Not `find`: its offset only says how far HALF is read before the reply.
            if event != "find" and half != (half := self.first_of(half)):
                self.count("END named a copy")
            entries.append(Entry(end, stored, half, fields[1], event, headers["PGROUP"]))
        return entries

    def end_of_decisions(self) -> int:
        """The END offset after the last record that may still be applied."""
        last = self.decision_log.high_watermark
        while last and (
            self.decision_log.entries[last - 1].kind != "data" or self.decision_log.entries[last - 1].is_aborted
        ):
            last -= 1
        return last

    def decides(self, entry: Entry, half: Half) -> bool:
        """Whether this entry may decide about the half message if it comes first."""
        return (
            entry.event in {"commit", "rollback"}
            and half.headers.get("UNIQ_KEY") == entry.transaction_id
            and half.headers.get("PGROUP") == entry.group
        )

    def apply(self, entry: Entry, now: int) -> Half | None:
        """Apply one command. Returns the half message if the command decided or resumed it."""
        half = self.half(entry.half)
        if half is None or half.is_malformed or entry.event == "find":
            return None
        known = half.headers["UNIQ_KEY"] == entry.transaction_id and half.headers["PGROUP"] == entry.group
        if half.state == "forgotten" or not known:
            return None
        if half.state == "pending" and entry.event in {"commit", "rollback"}:
            half.decided = entry.end
            if entry.event == "rollback":
                self.count("transition pending rollback")
                half.state = "rolled_back"
            else:
                # The message is decided. The same Kafka transaction shows whether it is delivered at once, scheduled or
                # held.
                half.state = "held"
            return half
        self.count(f"transition {half.state} {entry.event}")
        if half.state == "discarded" and entry.event == "resume":
            half.state, half.checks, half.due, half.since = "pending", 0, 0, now
            half.resumed_by = entry.stored.appended
            return half
        if half.state in {"held", "scheduled"} and entry.event == "abandon":
            half.state = "abandoned"
            return half
        return None
