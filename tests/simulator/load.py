"""The load of a run: how many messages, how large, how much a Kafka transaction may hold, and what the link carries.

Chosen by a chance of its own, so that what else a seed means does not depend on it.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

from txbridge.core.transaction_size import Limits


@dataclass(slots=True)
class Load:
    """Of one run. Without `is_heavy` it is as light as can be."""

    random: random.Random
    is_heavy: bool = False
    limits: Limits = field(default_factory=Limits)
    #: Bytes that the link carries within the produce time-out: always more than the largest message needs.
    link: int = sys.maxsize
    #: Sizes of messages, about the limits.
    sizes: tuple[int, ...] = ()
    #: Steps before the first worker comes up.
    outage: int = 0

    def padding(self) -> bytes:
        """Makes a message larger."""
        return b"x" * (self.random.choice(self.sizes) if self.sizes else 0)


def choose_load(seed: int) -> Load:
    """A light one or a heavy one."""
    chance = random.Random(f"load {seed}")
    if chance.random() < 0.5:
        return Load(chance)
    budget = chance.choice((150, 400, 16 * 1024 * 1024))
    return Load(
        chance,
        is_heavy=True,
        limits=Limits(chance.choice((2, 5, 10_000)), budget),
        link=chance.choice((sys.maxsize, 4_000, 8_000)),
        sizes=chance.choice(((0, 10, 400), (0, 60, 120), (300, 600))),
        outage=chance.choice((0, 60, 120)),
    )
