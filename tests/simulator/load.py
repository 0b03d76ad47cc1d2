"""The load of a run: number and size of messages, limits of a Kafka transaction, and the link's capacity.

It has a random source of its own, so that the rest of a seed's run does not depend on it.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

from txbridge.core.plan.choice import Limits


@dataclass(slots=True)
class Load:
    """The load of one run. Without `is_heavy` it is as light as possible."""

    random: random.Random
    is_heavy: bool = False
    limits: Limits = field(default_factory=Limits)
    #: Bytes that the link carries within the produce time-out. The largest message needs less.
    link: int = sys.maxsize
    #: Sizes of messages, near the limits.
    sizes: tuple[int, ...] = ()
    #: Whether messages come several at a time, nearly all without options, and with a late first check. Then many fresh
    #: ones are decided together.
    is_plain: bool = False
    #: Bytes of bodies that a worker keeps: enough for a few messages, or for all.
    payload_memory: int = 300
    #: Number of steps before the first worker starts.
    outage: int = 0
    #: Least time between two Kafka transactions of a worker: none, the default, or one that many steps fit into.
    commit_interval: float = 0
    #: Share of the messages that name a time of delivery.
    delayed: float = 0.0

    def padding(self) -> bytes:
        """Bytes that make a message larger."""
        return b"x" * (self.random.choice(self.sizes) if self.sizes else 0)


def choose_load(seed: int) -> Load:
    """Choose a light or a heavy load, with or without delayed messages, and how often a worker commits."""
    load, side = _choose_load(seed), random.Random(f"delays {seed}")
    if side.random() < 0.5:
        load.delayed = 0.05 if load.is_plain else side.choice((0.2, 0.8))
    load.commit_interval = random.Random(f"interval {seed}").choice((0, 0.02, 0.02, 1))
    return load


def _choose_load(seed: int) -> Load:
    chance = random.Random(f"load {seed}")
    side = random.Random(f"fresh {seed}")
    is_plain = side.random() < 0.4
    payload_memory = side.choice((3_000, 1_000_000, 1_000_000) if is_plain else (300, 300, 1_000_000))
    if chance.random() < 0.5:
        return Load(chance, is_plain=is_plain, payload_memory=payload_memory)
    budget = chance.choice((150, 400, 16 * 1024 * 1024))
    return Load(
        chance,
        is_heavy=True,
        limits=Limits(chance.choice((2, 5, 10_000)), budget),
        # A slow link carries fewer messages: each due one has to get through in time.
        link=max(chance.choice((sys.maxsize, 4_000, 8_000)), sys.maxsize * is_plain),
        sizes=chance.choice(((0, 10, 400), (0, 60, 120), (300, 600))),
        is_plain=is_plain,
        payload_memory=payload_memory,
        outage=chance.choice((0, 60, 120)),
    )
