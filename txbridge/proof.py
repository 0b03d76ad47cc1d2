"""Proof of life: how long ago something worked. Readiness and liveness of all programs are made of it."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A program is ready while the last proof is not older than this (s). Proofs are asked for every PROOF_EVERY_S. So one
#: late answer of a busy broker, or a coordinator's election of some seconds, is no outage yet. It is also the shortest
#: session time-out that brokers accept by default: after that the group may have given a worker's partitions to others.
FRESH_S = 6.0
#: Seconds between two questions. A program that is not ready gets no requests that could prove anything. So it has to
#: ask, and notices within this time that Kafka is back.
PROOF_EVERY_S = 2.0


def rest_after(took: float) -> float:
    """Seconds until the next question after one that took so long.

    After a late answer it follows at once. The proof is as old as the question already: it would run out during a rest.
    """
    return max(0.0, PROOF_EVERY_S - took)


class ProofOfLife:
    """Age of the last proof that something works: Kafka, a database, an event loop. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def renew(self, age: float = 0.0) -> None:
        """It works, or did `age` seconds ago: an answer counts from its question, and knows of nothing later."""
        self._at = max(self._at, self._clock() - age)

    @property
    def age(self) -> float:
        """Seconds since the last proof, or since the beginning."""
        return self._clock() - self._at

    @property
    def is_fresh(self) -> bool:
        """Whether the last proof still counts."""
        return self.age <= FRESH_S
