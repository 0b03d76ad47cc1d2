"""The ways that are compared, and the loads: tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.bench.outbox import relays
from tests.bench.outbox.connect import LOGICAL, connect
from tests.bench.outbox.relay_way import relay
from tests.bench.outbox.relays import Start


@dataclass(frozen=True)
class Load:
    """Calls at the same time, and orders a second; 0 means as fast as possible."""

    calls: int
    rate: float = 0
    #: `threads` or `asyncio`.
    api: str = "threads"


LOADS = {
    "20/s": Load(8, 20),
    "200/s": Load(8, 200),
    "1,000/s": Load(8, 1_000),
    "5,000/s": Load(8, 5_000),
    "1 thread": Load(1),
    "8 threads": Load(8),
    "32 threads": Load(32),
    "asyncio 100": Load(100, api="asyncio"),
}
# Full speed comes first: at a low rate the processor time of a Kafka that Java still compiles would be the compiler's.
ALL = ("1 thread", "8 threads", "32 threads", "asyncio 100", "200/s")


@dataclass(frozen=True)
class Way:
    """A service with its relay."""

    #: By its name in tests.bench.outbox.announce.
    announce: str
    relay: Start = relays.none
    loads: tuple[str, ...] = ALL
    #: Of HALF and END, instead of the option.
    partitions: int | None = None
    #: Whether anything becomes visible.
    is_announced: bool = True
    #: Whether restarts of the relay and its way through a backlog are measured.
    restarts: bool = False
    #: Whether its processor time without messages is measured.
    idle: bool = True
    #: Of PostgreSQL: a way with settings has a server of its own.
    postgres: Mapping[str, str] = field(default_factory=dict)
    #: Orders before a measurement: connections open, Kafka knows the producers, and a relay's JVM compiles.
    warm_up: int = 200

    @property
    def is_killed(self) -> bool:
        """Whether `--faults` kills it: without a relay there is only the service."""
        return self.restarts or self.announce == "send"


TXBRIDGE, POLLED, FOUR, PACED = "txbridge", "polled, 50 ms", "txbridge, 4 half partitions", "txbridge, without SQL"
OUTBOX, OUTBOX_NOTIFY = "txbridge relay", "txbridge relay, LISTEN/NOTIFY"
EXACTLY_ONCE, BARE = "Debezium, exactly once", "bare INSERT"
WAYS = {
    TXBRIDGE: Way("txbridge", relays.worker, (*ALL, "20/s"), restarts=True),
    FOUR: Way("txbridge", relays.worker, ("8 threads", "200/s", "20/s"), partitions=4),
    PACED: Way("pipelined", relays.worker, ("5,000/s", "1,000/s", "200/s", "20/s"), idle=False),
    POLLED: Way("row", relays.polled("poll"), (*ALL, "20/s"), restarts=True),
    OUTBOX: Way("outbox", relay, (*ALL, "20/s"), restarts=True),
    OUTBOX_NOTIFY: Way("outbox, notify", relay, restarts=True),
    "polled, LISTEN/NOTIFY": Way("notify", relays.polled("notify")),
    "polled, Kafka transactions": Way("row", relays.polled("transactions"), restarts=True),
    "Debezium": Way("row", connect(exactly_once=False), restarts=True, postgres=LOGICAL, warm_up=5_000),
    EXACTLY_ONCE: Way("row", connect(exactly_once=True), restarts=True, postgres=LOGICAL, warm_up=5_000),
    "send after commit (unsafe)": Way("send", idle=False),
    BARE: Way("insert", is_announced=False),
}
