"""The open messages of this worker's partitions, as the status page lists them: from the memory of their owners.

An owner answers between two turns, and only while somebody looks at the page.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from heapq import nsmallest
from itertools import chain, islice
from typing import Any, NamedTuple

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_queue import HalfQueue
from txbridge.core.open_messages import OTHER
from txbridge.core.states import TransactionState
from txbridge.operations.causes import ProblemOf, next_step_of, remedy_of, trouble_of
from txbridge.operations.view import open_message
from txbridge.text import plain
from txbridge.worker.partitions import Worker

#: Most messages that are shown, and most causes; the other causes are counted.
MOST_SHOWN, _MOST_CAUSES = 100, 50
#: Most messages without an error that an owner looks at, for those that are shown. It takes some milliseconds.
_MOST_LOOKED_AT = 10_000
#: Most characters of a cause and an error.
_LONGEST = 500
#: Least pause between two questions to the owners: in seconds, and as a multiple of the longest answer. To count a
#: million held messages takes half a second, so it takes at most a tenth of an owner's time.
_PAUSE_S, _PAUSE_TIMES = 1.0, 9.0


class Cause(NamedTuple):
    """What keeps messages open. Without an error, all of a group and state are together."""

    state: TransactionState
    group: str
    topic: str = ""
    error: str | None = None

    @classmethod
    def of(cls, entry: HalfEntry) -> Cause:
        if entry.error is None:
            return cls(entry.state, entry.group)
        is_held = entry.state is TransactionState.HELD
        # All messages that a topic refuses wait for the same.
        return cls(entry.state, "" if is_held else entry.group, entry.real_topic if is_held else "", entry.error)

    def describe(self, problem_of: ProblemOf) -> str:
        """The cause in words; the text begins with the state."""
        if self.topic:
            return f"{self.state.value} for topic {self.topic}: {self.error}"
        problem = problem_of(self.group) if self.state is TransactionState.PENDING else None
        why = f"cannot be asked: {self.error}" if self.error else problem
        return f"{self.state.value}, group {self.group}{f': {why}' if why else ''}"

    @property
    def name(self) -> str:
        """A short and stable name for it."""
        return sha256(repr(tuple(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """What is open in one partition."""

    counts: Counter[Cause]
    #: The oldest messages of the cause that was asked for, or of all.
    messages: Sequence[HalfEntry]
    #: How long the answer took, s.
    seconds: float


def look_at(queue: HalfQueue, chosen: str, clock: Callable[[], float] = time.monotonic) -> OpenAnswer:
    """The open messages of a partition. `chosen` is the name of a cause, or empty for all."""
    began = clock()
    refused = list(queue.iter_refused())
    counts = Counter(map(Cause.of, refused))
    opened = queue.open_counts()
    rest = Counter({(group, TransactionState.PENDING): sum(slots.values()) for group, slots in opened.pending.items()})
    rest.update(opened.others)
    for entry in refused:
        # Of very many groups some are counted together.
        counted = (entry.group, entry.state)
        rest[counted if counted in rest else (OTHER, entry.state)] -= 1
    counts.update({Cause(state, group): number for (group, state), number in rest.items() if number > 0})
    wanted = {cause for cause in counts if not chosen or cause.name == chosen}
    others = (entry for entry in islice(queue.iter_open(), _MOST_LOOKED_AT) if entry.error is None)
    shown = (entry for entry in chain(refused, others) if Cause.of(entry) in wanted)
    return OpenAnswer(counts, nsmallest(MOST_SHOWN, shown, key=lambda entry: entry.offset), clock() - began)


class OpenBoard:
    """The list of one worker. `take_snapshot` waits for nobody, and is called in one thread alone."""

    def __init__(
        self,
        find_worker: Callable[[], Worker | None],
        policy: CheckPolicy,
        problem_of: ProblemOf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_worker = find_worker
        self._policy = policy
        self._problem_of = problem_of
        self._clock = clock
        self._asked: dict[int, Future[OpenAnswer]] | None = None
        self._asked_for = ""
        self._next_question = float("-inf")
        self._read: dict[str, Any] | None = None

    def take_snapshot(self, chosen: str, now: int) -> dict[str, Any]:
        """The last answers as JSON values; asks the owners anew if that is due. `now` (ms) is the brokers' time."""
        self._collect_answers(now)
        worker = self._find_worker()
        if self._asked is None and worker is not None and self._clock() >= self._next_question:
            self._asked_for = chosen
            self._asked = {one.partition: one.ask(lambda queue: look_at(queue, chosen)) for one in worker.owners()}
            self._collect_answers(now)
        return {"reading": self._read is None or self._read["cause"] != chosen, "read": self._read}

    def _collect_answers(self, now: int) -> None:
        asked = self._asked
        if asked is None or not all(answer.done() for answer in asked.values()):
            return
        self._asked = None
        answers = {partition: one.result() for partition, one in asked.items() if not one.cancelled()}
        longest = max((answer.seconds for answer in answers.values()), default=0.0)
        self._next_question = self._clock() + max(_PAUSE_S, _PAUSE_TIMES * longest)
        self._read = self._as_json(answers, sorted(asked.keys() - answers.keys()), now)

    def _as_json(self, answers: dict[int, OpenAnswer], unread: list[int], now: int) -> dict[str, Any]:
        counts = sum((answer.counts for answer in answers.values()), Counter[Cause]())
        states: Counter[str] = Counter()
        for cause, number in counts.items():
            states[cause.state.value] += number
        ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0].describe(self._problem_of)))
        return {
            "at": now,
            "total": counts.total(),
            "states": states,
            "cause": self._asked_for,
            "causes": [
                {
                    "name": cause.name,
                    "text": plain(cause.describe(self._problem_of), _LONGEST),
                    "remedy": remedy_of(cause.state, self._problem_of(cause.group)),
                    "count": number,
                }
                for cause, number in ranked[:_MOST_CAUSES]
            ],
            "more_causes": max(0, len(ranked) - _MOST_CAUSES),
            "unread": unread,
            "messages": self._rows(answers, now),
        }

    def _rows(self, answers: dict[int, OpenAnswer], now: int) -> list[dict[str, Any]]:
        found: Iterable[tuple[int, HalfEntry]] = (
            (partition, entry) for partition, answer in answers.items() for entry in answer.messages
        )
        oldest = nsmallest(MOST_SHOWN, found, key=lambda one: (one[1].born, one[0], one[1].offset))
        messages = (open_message(entry, partition, self._policy) for partition, entry in oldest)
        return [
            {
                "of": message.coordinates,
                "id": message.short_id,
                "state": message.state.value,
                "group": message.group,
                "topic": message.real_topic,
                "age": max(0, now - message.born) / 1000,
                "checks": message.checks,
                "next": next_step_of(message, now),
                "trouble": plain(trouble_of(message), _LONGEST),
            }
            for message in messages
        ]
