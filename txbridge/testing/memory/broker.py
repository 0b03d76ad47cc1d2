"""Kafka in memory, as the clients of a bridge see it: a broker and one half partition.

It holds the logs that Kafka would hold, and takes the turns of a worker on the real state machine.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from txbridge.client.message import now_ms
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import DecisionRecord, parse_end
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, Reply, check_headers, parse_half
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Headers, Names, topics_of
from txbridge.core.plan.choice import ROUND_LIMIT, Limits, Room, TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord, abandoned_headers, given_up_headers
from txbridge.core.plan.planner import DueRound, TurnPlanner
from txbridge.core.states import TransactionState
from txbridge.kafka.topic_lookup import partition_problem

_WAITS = (TransactionState.SCHEDULED, TransactionState.HELD)
#: There is one half partition, so all decisions keep their order.
HALF_PARTITIONS, PARTITION = 1, 0


class _OpenTopics:
    """What the planner asks of the real topics: each exists, and takes every message for a partition that it has."""

    room: Room | None = None

    def __init__(self, halves: Sequence[HalfMessage]) -> None:
        self._halves = halves
        #: Numbers of partitions of the topics that the test has created.
        self.partitions: dict[str, int] = {}

    def begin_draft(self) -> None:
        """Nothing to count."""

    def are_clear(self, _topics: object) -> bool:
        return True

    def problem_of_any(self, _entry: HalfEntry) -> str | None:
        return None

    def obstacle_of_new(self, entry: HalfEntry) -> str | None:
        half = self._halves[entry.offset]
        places = [(half.real_topic, half.real_partition)]
        if half.messages is not None:
            places = [(one.topic, one.partition) for one in half.framed]
        problems = (
            partition_problem(topic, self.partitions[topic], partition)
            for topic, partition in places
            if partition is not None and topic in self.partitions
        )
        return next(filter(None, problems), None)

    obstacle_of_held = obstacle_of_new


class CrashPoint(Enum):
    """A place in a send at which its process dies."""

    #: The half message is stored, and the local transaction is not run.
    PREPARED = "prepared"
    #: The local transaction is over, and its decision is not sent.
    EXECUTED = "executed"
    #: The decision is stored, and the caller never learns it.
    DECIDED = "decided"


class MemoryBroker:
    """The records of HALF, END, the real topics and the discard topic, and what the worker knows.

    Thread-safe, as listeners and pools of a service have threads of their own.
    """

    def __init__(self, policy: CheckPolicy) -> None:
        self._lock = threading.RLock()
        #: The time, in ms since 1970-01-01 UTC.
        self.now = now_ms()
        #: Whether Kafka answers.
        self.is_running = True
        #: Whether the next END is to be lost, and where the next process dies.
        self.is_to_lose = False
        self.crash_point: CrashPoint | None = None
        self._policy = policy
        self._names = Names()
        self._queue = HalfQueue(policy)
        self._halves: list[HalfMessage] = []
        self.topics = _OpenTopics(self._halves)
        self._planner = TurnPlanner(
            self._queue,
            TransactionSize(Limits()),
            self.topics,
            lambda _: None,
            lambda offsets: {offset: self._halves[offset] for offset in offsets},
        )
        #: Copies for the discard topic of half messages that no worker takes.
        self._refused: dict[int, MalformedRecord] = {}
        self._waiting: list[DecisionRecord] = []
        #: Replies that nobody has read yet.
        self._replies: list[Reply] = []
        self._end = 0
        self._topics: dict[tuple[str, int], list[Message]] = defaultdict(list)

    def store_half(self, key: bytes | None, value: bytes | None, headers: Headers) -> tuple[int, int]:
        """Append a half message. Returns its offset and its birth (ms)."""
        with self._lock:
            half = parse_half(len(self._halves), self.now, key, value, headers, self._names)
            self._halves.append(half)
            self._queue.note_time(self.now)
            self._queue.note_id(half)
            if (why := self._queue.why_not_read(half)) is None:
                self._queue.read_half(half)
            else:
                self._queue.read_malformed(half.offset, half.size)
                self._refused[half.offset] = MalformedRecord(
                    self._names.half, PARTITION, half.offset, key, value, headers, why
                )
            return half.offset, self.now

    def store_decision(self, value: bytes, headers: Headers) -> None:
        """Append a record to END and apply it."""
        with self._lock:
            self._waiting.append(parse_end(self._end, value, headers, self.now))
            self._end += 1
            # Checks are left to the calls that move the clock, which answer them.
            self.run_turns(lambda _: False)

    def describe(self) -> str:
        """What is visible in each real topic, and what waits, a line each."""
        with self._lock:
            names = self._names
            lines = [
                f"  {topic}: key={one.key()!r} value={one.value()!r}"
                for (topic, _), log in self._topics.items()
                for one in log
                if topic != names.discard and not topic.startswith(names.check(""))
            ]
            for entry in self._open_entries():
                waits = f"waits {(entry.next_due - self.now) / 1000:g} s" if entry.state in _WAITS else "undecided"
                lines.append(f"  {', '.join(topics_of(self._halves[entry.offset].real_topic))}: {waits}")
        return "\n".join(lines) or "  nothing"

    def ask_worker(self, value: bytes, headers: Headers) -> Reply:
        """Store a record of END that asks for a reply. Returns the reply."""
        with self._lock:
            self.store_decision(value, headers)
            return self._replies.pop()

    def read_topic(self, topic: str) -> list[Message]:
        """The records of a topic, partition by partition."""
        with self._lock:
            partitions = sorted(partition for name, partition in self._topics if name == topic)
            return [message for partition in partitions for message in self._topics[topic, partition]]

    def run_turns(self, is_alive: Callable[[str], bool]) -> list[Message]:
        """Do all that is due now, and return the records of the checks.

        Checks are sent for a producer group that `is_alive` alone.
        """
        queue, checks = self._queue, list[Message]()
        with self._lock:
            now = self.now
            while True:
                queue.note_time(now)
                due_round = DueRound(
                    now,
                    now,
                    groups=[*filter(is_alive, queue.timers.groups_with_checks_due(now, sys.maxsize))],
                    obstacle=lambda _: None,
                    most_checks=ROUND_LIMIT,
                    most_discards=ROUND_LIMIT,
                    is_probe=False,
                )
                choice = self._planner.choose(self._waiting, self._end, now)
                self._planner.look_at_due(now)
                draft = self._planner.plan(choice, now, due_round, may_discard=True, most_malformed=ROUND_LIMIT)
                if draft.is_empty:
                    draft.abandon()
                    return checks
                checks += self._write_draft(draft)
                draft.apply(now)
                self._waiting = [record for record in self._waiting if record.offset >= queue.next_end]

    def _write_draft(self, draft: Draft) -> list[Message]:
        """Append what a worker writes in one Kafka transaction. Returns the checks."""
        halves, end, discard = self._halves, draft.next_end, self._names.discard
        bodies = dict(enumerate(halves))

        def add(topic: str, record: HalfMessage | MalformedRecord, headers: Headers) -> Message:
            stored = (TIMESTAMP_LOG_APPEND_TIME, draft.now)
            return self._append(topic, record.value, record.key, 0, stored, headers)

        for part in draft.parts:
            for _, topic, value, key, partition, timestamp, headers in part.copies(PARTITION, bodies):
                self._append(topic, value, key, max(partition, 0), (TIMESTAMP_CREATE_TIME, timestamp), headers)
        for entry in draft.discards:
            half = halves[entry.offset]
            copy = add(discard, half, given_up_headers(half, entry, PARTITION, end))
            draft.note_discarded(entry.offset, 0, copy.offset() or 0)
        for abandoned in draft.abandoned:
            half = halves[abandoned.entry.offset]
            add(discard, half, abandoned_headers(half, abandoned, PARTITION, end))
        self._replies += [reply for _, reply in draft.replies]
        for offset in draft.malformed:
            record = self._refused.pop(offset)
            add(discard, record, [*record.headers, *record.discard_headers()])
        return [
            add(self._names.check(entry.group), half, check_headers(half, PARTITION, entry.checks, end))
            for entry in draft.checks
            for half in [halves[entry.offset]]
        ]

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: tuple[int, int],
        headers: Headers,
    ) -> Message:
        log = self._topics[topic, partition]
        log.append(Message(topic, partition, len(log), key, value, list(headers), timestamp=timestamp))
        return log[-1]

    def state_of(self, offset: int) -> TransactionState | None:
        """The state of the half message at this offset; None if there is none."""
        with self._lock:
            if (entry := self._queue.entry(offset)) is not None:
                return entry.state
            finished = self._queue.finish_of(offset)
            return None if finished is None else finished.outcome.state

    def list_pending(self) -> list[HalfEntry]:
        """The undecided messages, oldest first."""
        with self._lock:
            return [entry for entry in self._open_entries() if entry.state is TransactionState.PENDING]

    def move_clock(self, until: int) -> None:
        """Move the clock to the next time (ms) at which something may be due; at most to `until`."""
        with self._lock:
            dues = (time for one in self._open_entries() for time in (one.next_due, self._policy.expires(one.since)))
            self.now = min((time for time in dues if self.now < time < until), default=until)

    def _open_entries(self) -> Iterator[HalfEntry]:
        return (entry for half in self._halves if (entry := self._queue.entry(half.offset)) is not None)
