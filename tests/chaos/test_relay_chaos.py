"""An outbox under chaos, with its relays and with store and forward: each committed row is visible once, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, Table, create_engine, insert
from txbridge_sqlalchemy import Outbox, SqlTransactionListener

from tests.chaos.relay_faults import FAULTS, SHORT, Fault
from tests.chaos.relay_run import judge, run_relays
from tests.support.harness import Bridge, eventually
from tests.support.postgres import Postgres
from tests.support.relays import make_outbox, relaying, rows_left
from txbridge import LocalTransactionState, Message, MessageExt, SendStatus, TransactionProducer
from txbridge.client.answers import RolledBackByCheck
from txbridge.embedded import EmbeddedKafka


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("rows", "rate", "faults"),
    [
        pytest.param(2_000, 300, SHORT, id="short"),
        pytest.param(100_000, 1_000, FAULTS, marks=pytest.mark.long, id="long"),
    ],
)
def test_p3_p10_p14_rows_are_visible_once_and_in_order_whatever_fails(
    own_kafka: EmbeddedKafka, rows: int, rate: float, faults: Sequence[Fault]
) -> None:
    assert run_relays(own_kafka, rows, rate, faults) == []


def test_the_judge_finds_what_is_wrong() -> None:
    committed = {1: b"a", 2: b"a", 3: b"b", 4: b"a"}
    assert judge(committed, [(b"a", 1), (b"a", 2), (b"b", 3), (b"a", 4)]) == []
    assert judge(committed, [(b"a", 2), (b"a", 1), (b"a", 1), (b"c", 3), (b"b", 5)]) == [
        "lost: 4",
        "phantom: 5",
        "doubled: 1 2 times",
        "out of order: 2 before 1 of key b'a'",
        "strayed: 3 has key b'c'",
    ]


LANES, PARTITIONS, GROUP = 3, 4, "shop"
#: Threads of the service, each with keys of its own, whose orders follow one another.
CALLERS, KEYS = 16, 3
#: Time-out of a half message. A call takes no longer than this and a second, and that once for each caller.
PREPARE_S = 3.0
#: Orders per second of all. Seconds of traffic before the outage, of the outage, and after it.
RATE, BEFORE_S, AWAY_S, AFTER_S = 200, 5.0, 60.0, 20.0
#: Everything has to be visible this long after the traffic (s).
SETTLE_S = 120.0

_tables = MetaData()
_orders = Table(
    "orders", _tables, Column("number", BigInteger, primary_key=True), Column("key", LargeBinary, nullable=False)
)
_ORDER = insert(_orders)


def _place(connection: Connection, _: MessageExt, placed: dict[str, object]) -> None:
    connection.execute(_ORDER, placed)


class _Caller(threading.Thread):
    """Places orders at a rate, one after another."""

    def __init__(self, producer: TransactionProducer, topic: str, number: int, rate: float, ended: threading.Event):
        super().__init__(name=f"caller-{number}", daemon=True)
        self._producer, self._topic, self._first, self._rate = producer, topic, number * 10**9, rate
        self._ended = ended
        #: When each call began, and its status; or why an order was refused.
        self.calls: list[tuple[float, SendStatus]] = []
        self.refused: list[str] = []

    def run(self) -> None:
        since = time.monotonic()
        while not self._ended.is_set():
            placed = len(self.calls) + len(self.refused)
            began, key = time.monotonic(), b"%d-%d" % (self._first, placed % KEYS)
            message = Message(self._topic, b"%d" % (self._first + placed), key)
            try:
                order = {"number": self._first + placed, "key": key}
                result = self._producer.send_message_in_transaction(message, order)
            except Exception as error:
                self.refused.append(f"{type(error).__name__}: {error}")
            else:
                if isinstance(result.local_exception, RolledBackByCheck):
                    continue  # nothing has happened, so the order is sent again
                self.calls.append((began, result.send_status))
                if result.local_transaction_state is not LocalTransactionState.COMMIT_MESSAGE:
                    self.refused.append(f"{result.local_transaction_state}: {result.local_exception}")
            self._ended.wait(max(0.0, since + placed / self._rate - time.monotonic()))


@pytest.mark.long
def test_p3_p14_orders_are_taken_while_kafka_is_away(own_kafka: EmbeddedKafka) -> None:
    with Bridge(own_kafka.bootstrap_servers, "store", partitions=LANES) as bridge, ExitStack() as stack:
        postgres = stack.enter_context(Postgres())
        engine = make_outbox(postgres.url)
        stack.callback(engine.dispose)
        _tables.create_all(engine)
        topic = bridge.create_topic("orders", PARTITIONS)
        bridge.worker(session_timeout=6_000, transaction_timeout=3_000, transaction_check_max=100)
        relay = stack.enter_context(relaying(bridge, postgres.url))
        pool = create_engine(postgres.url, pool_size=CALLERS + 2)
        stack.callback(pool.dispose)
        listener = SqlTransactionListener(pool, _place, outbox=Outbox())
        settings = {
            "bootstrap.servers": bridge.bootstrap_servers,
            "message.timeout.ms": int(PREPARE_S * 1_000),
            "session.timeout.ms": 6_000,
            "log_level": 0,
        }
        producer = stack.enter_context(TransactionProducer(GROUP, listener, settings, namespace=bridge.namespace))
        ended = threading.Event()
        callers = [_Caller(producer, topic, number, RATE / CALLERS, ended) for number in range(1, CALLERS + 1)]
        for caller in callers:
            caller.start()
        time.sleep(BEFORE_S)
        own_kafka.kill()
        lost = time.monotonic()
        time.sleep(AWAY_S)
        own_kafka.restart()
        back = time.monotonic()
        time.sleep(AFTER_S)
        # A relay dies while it has the rest of the rows, and another goes on.
        relay.kill()
        stack.enter_context(relaying(bridge, postgres.url))
        time.sleep(AFTER_S)
        # Orders go directly again.
        eventually(lambda: all(caller.calls[-1][1] is SendStatus.SEND_OK for caller in callers), SETTLE_S)
        ended.set()
        for caller in callers:
            caller.join()
        calls = [call for caller in callers for call in caller.calls]
        assert [reason for caller in callers for reason in caller.refused] == []
        eventually(lambda: rows_left(engine) == 0, SETTLE_S, lambda: f"{rows_left(engine)} rows are left")
        eventually(lambda: len(bridge.visible(topic)) >= len(calls), SETTLE_S)
        with engine.connect() as connection:
            committed = {row.number: bytes(row.key) for row in connection.execute(_orders.select())}
        assert len(committed) == len(calls)
        assert {status for began, status in calls if lost + 8 < began < back} <= {SendStatus.STORED}
        seen = [(record.key(), int(record.value() or b"")) for record in bridge.read(topic)]
        assert judge(committed, seen) == []
