"""Simulated processes of one service with SQL transactions: the product's own rule decides their answers to checks.

All of them are in one producer group and one database, as they must be, unless the fault "two stores under one group"
gives one of them another database. The half message names the barrier table. A sender may wait long before its row is
written, and any process may be asked meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulator.applications import COMMIT, ROLLBACK, UNKNOWN, Application, LocalTransaction
from tests.simulator.checker import Violation
from tests.simulator.load import Load
from tests.simulator.partition_log import Stored
from tests.simulator.records import half_headers
from tests.simulator.world import World
from txbridge import LocalTransactionState
from txbridge.client.barrier import COMMITTED, ROLLED_BACK, Barrier
from txbridge.client.checks.calls import parse_check
from txbridge.core.names import Headers, Names

GROUP = "sql"
WAITS, TWO_STORES = "sender waits before its row", "two stores under one group"
#: Patience of the listeners (s). With it some runs have enough checks for a rollback, and others have not.
PATIENCE_S = 2.0
#: Time (ms) from the acknowledgement to the row. With the fault it is that of a lock or of a connection pool.
_SOON, _LATE = (0, 0, 300), (1_100, 1_500, 1_900)
_DECISIONS = {
    LocalTransactionState.COMMIT_MESSAGE: COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: ROLLBACK,
    LocalTransactionState.UNKNOWN: UNKNOWN,
}
# The simulator traces what happens. The client's lines, whose times are of the real clock, go nowhere.
logging.getLogger("txbridge.client").addHandler(logging.NullHandler())


@dataclass(slots=True)
class BarrierTable:
    """A database: its identity, and the states of its transactions."""

    identity: str
    rows: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    """The group's position in its check topic, and all results, which no process knows."""

    check_position: int = 0
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)


class _Request:
    """A check as the client's consumer returns it."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def timestamp(self) -> tuple[int, int]:
        return 2, self._stored.appended

    def key(self) -> bytes | None:
        return self._stored.key

    def value(self) -> bytes | None:
        return self._stored.value

    def headers(self) -> Headers:
        return self._stored.headers


class SqlService(Application):
    """One process of the service."""

    def __init__(
        self, world: World, names: Names, name: str, partitions: int, load: Load, table: BarrierTable, group: Group
    ) -> None:
        super().__init__(world, names, name, GROUP, partitions, load)
        self._table, self._shared = table, group
        self._chance = world.side(f"sql of {name}")
        self._barrier = Barrier(PATIENCE_S)
        #: Local transactions of this life of the process that have not ended, and the times of their rows (ms).
        self._running: dict[str, tuple[LocalTransaction, int]] = {}

    def prepare(self, topic: str) -> None:
        """Send a half message that names the barrier table."""
        transaction = self._begin(self._chance)
        barrier = ("TXB_BARRIER", self._table.identity.encode())
        headers = [barrier, *half_headers(topic, self.group, transaction.transaction_id)]
        waits = WAITS in self._world.faults and self._chance.random() < 0.5
        if waits:
            self._world.count(f"fault {WAITS}")
        due = self._world.now + self._chance.choice(_LATE if waits else _SOON)
        self._running[transaction.transaction_id] = transaction, due
        self._hand_over(transaction, (b"key%d" % self._prepared, b"%d" % self._prepared, headers, 0), topic)

    def decide(self, *, is_final: bool = False) -> None:
        """Run the local transactions that have waited long enough, and usually send their decisions."""
        for transaction_id, (one, due) in tuple(self._running.items()):
            if one.offset is None or (self._world.now < due and not is_final):
                continue
            self._run(one)
            if self._chance.random() < 0.1 and not is_final:
                self._world.count("sql process died behind its row")
                self.die()
                return
            del self._running[transaction_id]
            self._send_end([one], "client")

    def _run(self, one: LocalTransaction) -> None:
        """Insert the row and commit; or roll back, as the application may."""
        name, rows = one.transaction_id, self._table.rows
        if name in rows:
            one.outcome = ROLLBACK
            age = self._world.now - self._born(one)
            if age < PATIENCE_S * 1000:
                raise Violation(
                    f"P4: {self.name}: {name[-4:]} was rolled back {age} ms after its birth, while it waited"
                )
        elif self._chance.random() < 0.2:
            one.outcome = ROLLBACK
        else:
            if name in self._shared.rolled_back:
                raise Violation(f"P2: {self.name}: {name[-4:]} commits, and its message is rolled back")
            rows[name], one.outcome = COMMITTED, COMMIT
            self._shared.committed.add(name)
        self._world.trace(f"{self.name}: row of {name[-4:]} {one.outcome}")

    def _born(self, one: LocalTransaction) -> int:
        # The sender may have heard of a copy. The message is as old as the first one, by the brokers' clock: a clock
        # that is behind takes from the patience of a check.
        named = ("UNIQ_KEY", one.transaction_id.encode())
        halves = self._world.cluster.logs[self._names.half, one.partition].entries
        return next(stored.timestamp for stored in halves if named in stored.headers)

    def answer_checks(self, *, is_final: bool = False) -> None:
        """Read check requests of the group and answer them by the table."""
        if is_final:
            self.decide(is_final=True)
        log = self._world.cluster.logs[self._names.check(self.group), 0]
        records, self._shared.check_position = log.visible(
            self._shared.check_position, 50 if is_final else 3, committed=True
        )
        for record in records:
            message = parse_check(_Request(record), self.group, self._names, self._partitions).message  # type: ignore[arg-type]
            name = message.transaction_id
            answer = UNKNOWN if name in self._running else self._by_table(message, name)
            entry = f"{message.half_offset},{name},{answer},{message.check_times}"
            self._send_entries(message.half_partition, [entry], "check")

    def _by_table(self, message, name: str) -> int:  # type: ignore[no-untyped-def]
        rows = self._table.rows
        if message.barrier_id != self._table.identity:
            self._world.count(f"fault {TWO_STORES}")
        state = self._barrier.answer(message, rows.get(name), self._table.identity)
        if state is None:
            rows[name] = ROLLED_BACK
            self._world.count("sql attempt rolled back by a check")
            state = LocalTransactionState.ROLLBACK_MESSAGE
        answer = _DECISIONS[state]
        if answer == ROLLBACK:
            if name in self._shared.committed:
                raise Violation(f"P2: {self.name}: answers rollback for {name[-4:]}, which is committed elsewhere")
            self._shared.rolled_back.add(name)
        elif answer == COMMIT:
            self._world.count("sql lost commit found by a check")
        elif name not in rows and message.barrier_id == self._table.identity:
            self._world.count("sql check was too early")
        return answer

    def die(self) -> None:
        """Kill -9: the local transactions that run are gone, and leave no row."""
        super().die()
        self._running.clear()

    # These would decide a transaction against its own database.

    def decide_again(self) -> None:
        """Do nothing."""

    def forge(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""


def sql_services(world: World, names: Names, partitions: int, load: Load) -> Sequence[SqlService]:
    """The processes of the service in runs with one of its faults; else none."""
    if not {WAITS, TWO_STORES} & world.faults.keys():
        return []
    group, table = Group(), BarrierTable("0000000000000001")
    other = BarrierTable("0000000000000002") if TWO_STORES in world.faults else table
    tables = (table, table, other)
    return [SqlService(world, names, f"sql{number}", partitions, load, its, group) for number, its in enumerate(tables)]
