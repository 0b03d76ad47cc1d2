"""Relays of an outbox under chaos: an application commits rows at a rate, while its relays fail in every way.

The application's table of orders is the truth: what is committed there is expected in the topic, once and in order.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, Table, insert, make_url, text
from sqlalchemy.exc import DBAPIError
from txbridge_sqlalchemy import Outbox

from tests.support.harness import Bridge, eventually
from tests.support.postgres import Postgres
from tests.support.relays import make_outbox, relaying, rows_left
from tests.support.stopped import is_stopped
from txbridge import Message
from txbridge.embedded import EmbeddedKafka

_PARTITIONS = 4
_WRITERS, _KEYS = 2, 7
#: Most orders of a transaction.
_MOST = 20
#: Of ten transactions one is rolled back, one has a savepoint that is, and two pairs are open at the same time.
_ROLLED_BACK, _SAVEPOINT, _OVERLAPPING = 0.1, 0.2, 0.4
#: An application whose database is away tries again after this time (s).
_RETRY_S = 0.2
#: A relay that stands by asks for the outbox every second; one that is paused loses it after 10 s of silence.
_OUTBOX_TIMEOUT_S = 60.0
#: Everything has to be visible this long after the last fault (s).
_SETTLE_S = 120.0
#: Share of the numbers that are committed orders, at least: some are rolled back, others met a database that was away.
_FEWEST = 0.6

#: The first number in the prepared transaction.
_PREPARED = 10**12

_tables = MetaData()
_orders = Table(
    "orders", _tables, Column("number", BigInteger, primary_key=True), Column("key", LargeBinary, nullable=False)
)
_ORDER = insert(_orders)


class RelayProcess(NamedTuple):
    """A relay, whose sessions have its name."""

    name: str
    process: subprocess.Popen[str]

    @property
    def is_stopped(self) -> bool:
        return is_stopped(self.process)

    @property
    def is_killed(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class _RolledBackError(Exception):
    """The application rolls a transaction back."""


class _Writer(threading.Thread):
    """Commits orders, each with a row of the outbox. Its keys are its own, and their numbers rise."""

    def __init__(self, run: RelayRun, first: int, count: int, rate: float, seed: int) -> None:
        super().__init__(name=f"writer-{first}", daemon=True)
        self._run, self._first, self._count, self._rate = run, first, count, rate
        self._next = first
        self._random = random.Random(seed)
        self._box = Outbox()

    def run(self) -> None:
        since = time.monotonic()
        while self._next - self._first < self._count or not self._run.faults_over.is_set():
            if self._run.abandoned.is_set():
                return
            try:
                self._write()
            except _RolledBackError:
                pass
            except DBAPIError:
                # Whether these orders are committed is in their table, and their numbers are not used again.
                time.sleep(_RETRY_S)
            time.sleep(max(0.0, since + (self._next - self._first) / self._rate - time.monotonic()))

    def _write(self) -> None:
        chosen = self._random.random()
        engine = self._run.engine
        with engine.begin() as one:
            self._add_orders(one)
            if chosen < _ROLLED_BACK:
                raise _RolledBackError
            if chosen < _SAVEPOINT:
                savepoint = one.begin_nested()
                self._add_orders(one)
                savepoint.rollback()
                self._add_orders(one)
            elif chosen < _OVERLAPPING:
                # Its rows have higher ids, perhaps of the same keys, and are committed first.
                with engine.begin() as other:
                    self._add_orders(other)
                time.sleep(self._random.uniform(0, 0.05))

    def _add_orders(self, connection: Connection) -> None:
        numbers = range(self._next, self._next + self._random.randint(1, _MOST))
        self._next = numbers.stop
        keys = {number: b"%d-%d" % (self._first, number % _KEYS) for number in numbers}
        connection.execute(_ORDER, [{"number": number, "key": key} for number, key in keys.items()])
        self._box.add(connection, *(Message(self._run.topic, b"%d" % number, key) for number, key in keys.items()))


class RelayRun:
    """Two relays, an application and its servers. There is no worker."""

    def __init__(self, kafka: EmbeddedKafka, bridge: Bridge, stack: ExitStack) -> None:
        self.kafka, self.bridge, self._stack = kafka, bridge, stack
        self.postgres = stack.enter_context(Postgres(max_prepared_transactions="5"))
        self.engine = make_outbox(self.postgres.url)
        stack.callback(self.engine.dispose)
        _tables.create_all(self.engine)
        self.topic = bridge.create_topic("orders", _PARTITIONS)
        #: A writer goes on until both its rows are written and this is set.
        self.faults_over, self.abandoned = threading.Event(), threading.Event()
        stack.callback(self.abandoned.set)
        self._started = 0
        self.relays: list[RelayProcess] = []
        self.add_relay()
        self.add_relay()

    def start_writers(self, rows: int, rate: float) -> list[_Writer]:
        writers = [
            _Writer(self, number * 10**9, rows // _WRITERS, rate / _WRITERS, number) for number in range(_WRITERS)
        ]
        for writer in writers:
            writer.start()
        return writers

    def add_relay(self, fault: str = "") -> RelayProcess:
        """Start a relay, and return when it is connected. With a fault point it is not one of the steady ones."""
        self._started += 1
        name = f"relay-{self._started}"
        url = make_url(self.postgres.url).update_query_dict({"application_name": name})
        process = self._stack.enter_context(
            relaying(self.bridge, url.render_as_string(hide_password=False), fault=fault)
        )
        relay = RelayProcess(name, process)
        eventually(lambda: self._sessions("count(*)", name), 60, f"{name} did not connect")
        if not fault:
            self.relays.append(relay)
        return relay

    def kill_relay(self) -> None:
        """Kill a steady relay by SIGKILL, and start another."""
        relay = self.relays.pop(random.randrange(len(self.relays)))
        assert relay.process.poll() is None, f"{relay.name} has ended by itself"
        relay.process.kill()
        relay.process.wait(60)
        self.add_relay()

    def replace_oldest(self, relay: RelayProcess) -> None:
        """Kill the oldest steady relay by SIGKILL: this one, which still works, takes its place."""
        assert relay.process.poll() is None, f"{relay.name} has ended by itself"
        self.relays.append(relay)
        self.relays.pop(0).process.kill()

    def end_sessions(self, name: str, at_most: int = 100) -> None:
        """End sessions of relays whose names match."""
        self._sessions("pg_terminate_backend(pid)", name, at_most)

    def let_work(self, relay: RelayProcess, is_done: Callable[[], bool]) -> None:
        """Have this one work until it has come to its fault point, while all others are paused. Then they go on."""
        for other in self.relays:
            other.process.send_signal(signal.SIGSTOP)
            self.end_sessions(other.name)
        try:
            eventually(is_done, _OUTBOX_TIMEOUT_S, f"{relay.name} did not come to its fault point")
        finally:
            for other in self.relays:
                other.go_on()

    def prepare_orders(self) -> Callable[[], None]:
        """Orders in a prepared transaction that nobody ends. Returns a function that commits it."""
        by_hand = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        with by_hand.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            numbers = range(_PREPARED, _PREPARED + 5)
            connection.execute(_ORDER, [{"number": number, "key": b"prepared"} for number in numbers])
            Outbox().add(connection, *(Message(self.topic, b"%d" % number, b"prepared") for number in numbers))
            connection.exec_driver_sql("PREPARE TRANSACTION 'orphan'")

        def commit() -> None:
            with by_hand.connect() as connection:
                connection.exec_driver_sql("COMMIT PREPARED 'orphan'")

        return commit

    def committed(self) -> dict[int, bytes]:
        """The keys of all orders, by their numbers."""
        with self.engine.connect() as connection:
            return {row.number: bytes(row.key) for row in connection.execute(_orders.select())}

    def _sessions(self, what: str, name: str, at_most: int = 100) -> int:
        which = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE :name"
        statement = text(f"SELECT {what} FROM ({which} ORDER BY random() LIMIT :most) AS found")
        with self.engine.connect() as connection:
            return connection.execute(statement, {"name": name, "most": at_most}).scalar() or 0


def run_relays(
    kafka: EmbeddedKafka,
    rows: int,
    rate: float,
    faults: Iterable[Callable[[RelayRun], None]],
    say: Callable[[str], None] = print,
) -> list[str]:
    """Let all faults happen under traffic, wait until everything has settled, and return what is wrong."""
    with Bridge(kafka.bootstrap_servers, "relay chaos") as bridge, ExitStack() as stack:
        run = RelayRun(kafka, bridge, stack)
        writers = run.start_writers(rows, rate)
        for fault in faults:
            since = time.monotonic()
            fault(run)
            say(f"{fault.__name__}: {time.monotonic() - since:.1f} s, {rows_left(run.engine)} rows wait")
        run.faults_over.set()
        for writer in writers:
            writer.join()
        eventually(lambda: rows_left(run.engine) == 0, _SETTLE_S, lambda: f"{rows_left(run.engine)} rows are left")
        committed = run.committed()
        assert len(committed) >= _FEWEST * rows
        seen = [(record.key(), int(record.value() or b"")) for record in bridge.read(run.topic)]
        say(f"{len(committed):,} orders, {len(seen):,} records")
        return judge(committed, seen)


def judge(committed: Mapping[int, bytes], seen: Iterable[tuple[bytes | None, int]]) -> list[str]:
    """What is wrong with these records (key and number) of the orders that are committed, whose keys are given."""
    times: Counter[int] = Counter()
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for key, number in seen:
        times[number] += 1
        by_key[key].append(number)
    found = [f"lost: {number}" for number in sorted(committed.keys() - times.keys())]
    found += [f"phantom: {number}" for number in sorted(times.keys() - committed.keys())]
    found += [f"doubled: {number} {count} times" for number, count in times.items() if count > 1]
    for key, numbers in by_key.items():
        found += [f"strayed: {number} has key {key!r}" for number in numbers if committed.get(number, key) != key]
        found += [
            f"out of order: {before} before {after} of key {key!r}"
            for before, after in itertools.pairwise(numbers)
            if before > after
        ]
    return found
