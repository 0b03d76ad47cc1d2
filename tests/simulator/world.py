"""The world of one run: its seed, time, Kafka, faults, and the trace of all events."""

from __future__ import annotations

import hashlib
import random
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable

from tests.simulator.cluster import Cluster
from tests.simulator.partition_log import LostTail

#: A time in 2025, so that times look realistic (ms).
_START = 1_750_000_000_000


class World:
    """The state that everything in one run shares. `random` is the only source of chance, `now` (ms) the only time."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = _START
        #: Milliseconds that pass with each I/O call.
        self.latency = 1
        #: Milliseconds that a new producer takes to get the fence, beyond its requests.
        self.fence_ms = 0
        self.counters: Counter[str] = Counter()
        self.lines: list[str] | None = [] if keep_trace else None
        self._digest = hashlib.sha256()
        #: By actor: hash of all results of its I/O calls. Only the exhaustive search keeps it.
        self.histories: dict[str, int] | None = None
        #: Topic of which an owner at rest asks for more records. Only the exhaustive search sets it.
        self.rests_at = ""
        #: By actor: position of each of its open readers, by the reader's number.
        self.positions: dict[str, dict[int, int]] = {}
        #: The last lines, for the report of a violation.
        self.tail: deque[str] = deque(maxlen=60)
        #: Chance of each kind of fault per occasion. Empty when faults have stopped.
        self.faults: dict[str, float] = {}
        #: Topics that have refused a record or been absent: messages for them may be held.
        self.refused: set[str] = set()
        #: max.message.bytes of the real topics, counted in values only. It limits the batch.
        self.max_batch = 150
        #: Longest time (ms) that passed in one step of the scheduler, before faults stopped.
        self.longest_stall = 0
        #: Bytes of records that the link carries within the produce time-out.
        self.link = sys.maxsize
        #: By partition: end of the log when its former leader lost it, and the time until which readers still ask that
        #: one.
        self.former_leaders: dict[tuple[str, int], tuple[int, int]] = {}
        #: All former leaders so far: partition, end, and time until which readers ask them.
        self.former_ends: list[tuple[tuple[str, int], int, int]] = []
        #: Logs that have lost their tail and have not been restored yet.
        self.lost_tails: dict[tuple[str, int], LostTail] = {}
        #: The brokers' clock is ahead by this much (ms), and was at most.
        self.brokers_ahead = self.brokers_were_ahead = 0
        #: Whether it was ever set. By such a clock something may come early.
        self.brokers_were_set = False
        self.cluster = Cluster(lambda: self.now, self.trace, lambda: self.now + self.brokers_ahead)
        #: Requests on their way that may arrive at any time: their kind, and their effect.
        self.late_requests: list[tuple[str, Callable[[], None]]] = []

    def side(self, what: str) -> random.Random:
        """A random source for one purpose. Its draws do not change anything else in a seed."""
        return random.Random(f"{self.seed} {what}")

    def trace(self, line: str) -> None:
        """Write an event into the trace. The line must not have addresses of objects or times of the real clock."""
        text = f"{self.now - _START:>7} {line}"
        self._digest.update(text.encode())
        self.tail.append(text)
        if self.lines is not None:
            self.lines.append(text)

    @property
    def digest(self) -> str:
        """Digest of the whole trace. Equal runs have equal ones."""
        return self._digest.hexdigest()

    def saw(self, actor: str, *results: object) -> None:
        """Note the results of an actor's I/O call. All further actions of the actor depend on these results only."""
        if self.histories is not None:
            self.histories[actor] = hash((self.histories.get(actor, 0), results))

    def rests(self, actor: str, timeout: float) -> None:
        """Note that an owner asks for more of END: it has handled all that it has read.

        Its knowledge is now in the logs, except for the positions of its readers.
        """
        if self.histories is not None:
            self.histories[actor] = hash(("rests", timeout, *sorted(self.positions.get(actor, {}).items())))

    def starts_anew(self, actor: str) -> None:
        """Note that an owner will take over again: its earlier results do not matter any more."""
        if self.histories is not None:
            self.histories[actor] = 0

    def count(self, what: str) -> None:
        self.counters[what] += 1

    def has_former_leader(self, place: tuple[str, int]) -> bool:
        """Whether readers still ask a broker that does not lead this partition any more."""
        return self.now < self.former_leaders.get(place, (0, 0))[1]

    def has_lost_tail(self, partition: int) -> bool:
        """Whether OFFSET or OP of this partition lacks records."""
        return any(place[1] == partition for place in self.lost_tails)

    def seen_end(self, place: tuple[str, int], end: int) -> int:
        """End of the log that the currently asked broker knows."""
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
