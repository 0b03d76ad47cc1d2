"""The world of one run: its seed, its time, its Kafka, its faults, and the trace of all that happened."""

from __future__ import annotations

import hashlib
import random
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable

from tests.simulator.cluster import Cluster
from tests.simulator.partition_log import LostTail

#: Some time in 2025, so that times look like times (ms).
_START = 1_750_000_000_000


class World:
    """Shared by everything in one run. All chance comes from `random`, all time is `now` (ms)."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = _START
        #: Milliseconds that pass with each I/O call.
        self.latency = 1
        self.counters: Counter[str] = Counter()
        self.lines: list[str] | None = [] if keep_trace else None
        self._digest = hashlib.sha256()
        #: By actor, all that its I/O calls have returned; kept only for the exhaustive search.
        self.histories: dict[str, int] | None = None
        #: By actor: how far each of its open readers is, by the reader's number.
        self.rests_at = ""
        self.positions: dict[str, dict[int, int]] = {}
        #: The last lines, for the report of a violation.
        self.tail: deque[str] = deque(maxlen=60)
        #: Chance of each kind of fault, per occasion; empty when faults have stopped.
        self.faults: dict[str, float] = {}
        #: Topics that have refused a record, or were not there: what is held for them is held for a reason.
        self.refused: set[str] = set()
        #: max.message.bytes of the real topics, as far as values go: it bounds the batch.
        self.max_batch = 150
        #: Bytes of records that the link carries within the produce time-out.
        self.link = sys.maxsize
        #: By partition: where the log ended when its former leader lost it, and until when readers still ask that one.
        self.former_leaders: dict[tuple[str, int], tuple[int, int]] = {}
        #: All that there were: partition, end, until when.
        self.former_ends: list[tuple[tuple[str, int], int, int]] = []
        #: Logs that have lost their tail, and were not restored yet.
        self.lost_tails: dict[tuple[str, int], LostTail] = {}
        self.cluster = Cluster(lambda: self.now, self.trace)
        #: Requests that are on their way and may arrive whenever they like: what they are, and their effect.
        self.late_requests: list[tuple[str, Callable[[], None]]] = []

    def side(self, what: str) -> random.Random:
        """Chance of its own for one matter: what it draws leaves all else in a seed as it is."""
        return random.Random(f"{self.seed} {what}")

    def trace(self, line: str) -> None:
        """Something happened. Neither addresses of objects nor times of the real clock may be in it."""
        text = f"{self.now - _START:>7} {line}"
        self._digest.update(text.encode())
        self.tail.append(text)
        if self.lines is not None:
            self.lines.append(text)

    @property
    def digest(self) -> str:
        """Of the whole trace: equal runs have equal ones."""
        return self._digest.hexdigest()

    def saw(self, actor: str, *results: object) -> None:
        """An I/O call returned this. What an actor does next follows from all that it has seen, and nothing else."""
        if self.histories is not None:
            self.histories[actor] = hash((self.histories.get(actor, 0), results))

    def rests(self, actor: str, timeout: float) -> None:
        """An owner asks for more of END: nothing that it has read waits to be done.

        All that it has seen has become the state of the logs, but for how far its readers are.
        """
        if self.histories is not None:
            self.histories[actor] = hash(("rests", timeout, *sorted(self.positions.get(actor, {}).items())))

    def starts_anew(self, actor: str) -> None:
        """An owner will take over again: what it has seen is of no importance any more."""
        if self.histories is not None:
            self.histories[actor] = 0

    def count(self, what: str) -> None:
        self.counters[what] += 1

    def has_former_leader(self, place: tuple[str, int]) -> bool:
        """Whether readers still ask a broker that leads this partition no more."""
        return self.now < self.former_leaders.get(place, (0, 0))[1]

    def has_lost_tail(self, partition: int) -> bool:
        """Whether OFFSET or OP of this partition lacks records."""
        return any(place[1] == partition for place in self.lost_tails)

    def seen_end(self, place: tuple[str, int], end: int) -> int:
        """The log end as whoever is asked now knows it."""
        return min(end, self.former_leaders[place][0]) if self.has_former_leader(place) else end

    def strikes(self, fault: str) -> bool:
        """Whether this kind of fault happens now."""
        chance = self.faults.get(fault)
        if chance is None or self.random.random() >= chance:
            return False
        self.count(f"fault {fault}")
        self.trace(f"fault: {fault}")
        return True

    @staticmethod
    def hash(key: bytes) -> int:
        """A hash that is the same in every process."""
        return zlib.crc32(key)
