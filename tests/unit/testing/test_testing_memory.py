"""txbridge.testing.memory: what it has beyond the contract of tests/integration/test_bridge_contract.py."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Iterator
from functools import partial

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, create_engine
from txbridge_sqlalchemy import Outbox, SqlBridge, SqlTransactionListener, create_outbox, create_table

from tests.support.apis import APIS, Asyncio
from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN, Answers
from txbridge import (
    AsyncTransactionProducer,
    EndTransactionError,
    Message,
    PrepareError,
    TransactionProducer,
    UsageError,
)
from txbridge.asgi import EXCEPTION_HANDLERS
from txbridge.errors import KafkaUnreachableError
from txbridge.testing.memory import CheckPolicy, ClientCrashError, CrashPoint, MemoryBridge, TransactionState

MESSAGE = Message("orders", b"value")


@pytest.fixture
def bridge() -> Iterator[MemoryBridge]:
    with MemoryBridge() as bridge:
        yield bridge


def values(bridge):
    return [message.value() for message in bridge.delivered("orders")]


@pytest.mark.parametrize(
    ("point", "executed", "checked", "fate"),
    [
        (CrashPoint.PREPARED, 0, 1, TransactionState.ROLLED_BACK),
        (CrashPoint.EXECUTED, 1, 1, TransactionState.ROLLED_BACK),
        (CrashPoint.DECIDED, 1, 0, TransactionState.COMMITTED),
    ],
)
def test_after_a_crash_another_producer_of_the_group_answers(bridge, point, executed, checked, fate):
    dying, heir = Answers(COMMIT), Answers(check=ROLLBACK)
    producer = bridge.start_producer(dying)
    bridge.crash_at(point)
    with pytest.raises(ClientCrashError, match=f"dies here: {point.value}"):
        producer.send_message_in_transaction(MESSAGE)
    assert not producer.is_connected
    with pytest.raises(ClientCrashError, match="has died"):
        producer.send_message_in_transaction(MESSAGE)
    bridge.advance(60)
    assert [one.checks for one in bridge.list_pending()] == [0] * checked, "nobody alive burns no check"
    bridge.start_producer(heir)
    assert bridge.let_checks_be_due() == checked
    assert (len(dying.executed), len(dying.checked), len(heir.checked)) == (executed, 0, checked)
    assert values(bridge) == ([b"value"] if fate is TransactionState.COMMITTED else [])
    assert bridge.list_pending() == []


async def test_a_crash_on_an_event_loop(bridge):
    async with AsyncTransactionProducer("test", Answers(), bridge.settings) as producer:
        bridge.crash_at(CrashPoint.EXECUTED)
        with pytest.raises(ClientCrashError):
            await producer.send_message_in_transaction(MESSAGE)


def test_a_crash_of_a_submitted_transaction(bridge):
    producer = bridge.start_producer(Answers())
    bridge.crash_at(CrashPoint.EXECUTED)
    with pytest.raises(ClientCrashError):
        producer.submit_message_in_transaction(MESSAGE).result()


def test_while_kafka_is_away_nothing_is_run(bridge):
    listener = Answers()
    producer = bridge.start_producer(listener)
    bridge.stop()
    assert not producer.is_connected
    with pytest.raises(PrepareError, match="Kafka is away") as refused:
        producer.send_message_in_transaction(MESSAGE)
    assert refused.value.passes
    with pytest.raises(KafkaUnreachableError, match="Kafka is away"):
        TransactionProducer("test", listener, bridge.settings).start()
    bridge.start()
    producer.send_message_in_transaction(MESSAGE).wait()
    assert (len(listener.executed), values(bridge)) == (1, [b"value"])


@pytest.mark.parametrize("api", APIS)
def test_a_service_starts_while_kafka_is_away(bridge, api):
    """As on Kafka, nobody has to send for it to become ready and to answer checks."""
    bridge.stop()
    producer = api("test", Answers(), bridge.settings, start_without_kafka=True)
    try:
        producer.start()
        assert not producer.is_connected
        with pytest.raises(PrepareError, match="Kafka is away"):
            producer.send(MESSAGE)
        bridge.start()
        assert producer.is_connected
    finally:
        producer.close()
        producer.end_loop()


def test_kafka_goes_away_during_the_local_transaction(bridge):
    def go_away(*_):
        bridge.stop()
        return COMMIT

    result = bridge.start_producer(Answers(go_away)).send_message_in_transaction(MESSAGE)
    with pytest.raises(EndTransactionError, match="the worker will ask"):
        result.wait()
    bridge.advance(60)
    assert bridge.read_fate(result) is TransactionState.PENDING
    bridge.start()
    bridge.advance(0)
    assert bridge.read_fate(result) is TransactionState.COMMITTED


@pytest.fixture
def engine(tmp_path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/orders.sqlite")
    create_table(engine)
    yield engine
    engine.dispose()


def test_rows_of_an_outbox_are_delivered_once_in_their_order_at_their_times(bridge, engine):
    create_outbox(engine)
    outbox = Outbox()
    bridge.relay(partial(outbox.take_rows, engine))
    with SqlBridge("orders", engine, outbox=outbox) as alone:
        with pytest.raises(KeyError), alone.announce(MESSAGE):
            raise KeyError
        with alone.announce(Message("orders", "first", key="1", headers={"a": b"\xff"})) as tx:
            tx.add(Message("orders", "later", delay=30), Message("orders", "second", partition=0, timestamp=10**12))
    with pytest.raises(AssertionError) as raised:
        bridge.assert_announced("orders", "first", key="2")
    said, first, second, third = str(raised.value).splitlines()
    assert said == "orders key='2' value='first': 0 and not 1. Announced:"
    assert (first, second) == ("  orders: key=b'1' value=b'first'", "  orders: key=None value=b'second'")
    assert re.fullmatch("  orders: waits (30|29\\.[0-9]+) s", third)
    [first] = bridge.assert_announced("orders", "first", key="1")
    assert ("a", b"\xff") in first.headers()
    assert values(bridge) == [b"first", b"second"]
    bridge.advance(30)
    assert values(bridge) == [b"first", b"second", b"later"]


def test_a_row_comes_after_the_decision_that_was_lost_before_it(bridge, engine):
    create_outbox(engine)
    outbox = Outbox()
    bridge.relay(partial(outbox.take_rows, engine))
    with SqlBridge("orders", engine, bridge.settings, outbox=outbox) as both:
        bridge.lose_decision()
        for number in range(3):
            with both.announce(Message("orders", f"{number}", key="1")):
                bridge.stop() if not number else None
        assert values(bridge) == []
        bridge.start()
        assert values(bridge) == [b"0", b"1", b"2"]


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
@pytest.mark.parametrize("point", [CrashPoint.PREPARED, CrashPoint.EXECUTED, CrashPoint.DECIDED])
def test_a_process_dies_within_a_request_of_a_test_client(bridge, engine, point):
    from fastapi.testclient import TestClient  # it warns when it is imported

    def request():
        sql = SqlBridge("orders", engine, bridge.settings, patience=0)
        service = FastAPI(lifespan=sql.lifespan, exception_handlers=EXCEPTION_HANDLERS)

        @service.post("/")
        def place():
            with sql.announce(Message("orders", '{"id": 1}'), once="1"):
                return "placed"

        with TestClient(service) as client:
            try:
                answer = client.post("/")
            finally:
                assert client.get("/nothing").status_code == 404
            bridge.advance(60)
            return answer.json()

    bridge.crash_at(point)
    with pytest.raises(ClientCrashError):
        request()
    assert ("done" in request()) is (point is not CrashPoint.PREPARED)
    bridge.assert_announced("orders", {"id": 1})


def test_what_a_check_raises_is_raised_to_the_test(bridge):
    listener = Answers(UNKNOWN, lambda message: _raise(KeyError(message.half_offset)))
    producer = bridge.start_producer(listener)
    results = [producer.send_message_in_transaction(MESSAGE) for _ in range(2)]
    with pytest.raises(ExceptionGroup) as raised:
        bridge.let_checks_be_due()
    assert [(type(one), *one.args) for one in raised.value.exceptions] == [(KeyError, 0), (KeyError, 1)]
    assert [bridge.read_fate(result) for result in results] == [TransactionState.PENDING] * 2, "counted as unknown"
    listener.check = "yes"
    with pytest.raises(ExceptionGroup, match="has raised"):
        bridge.let_checks_be_due()
    listener.check = COMMIT
    bridge.let_checks_be_due()
    assert [bridge.read_fate(result) for result in results] == [TransactionState.COMMITTED] * 2


def _raise(error):
    raise error


async def test_on_the_loop_of_a_producer_the_helpers_are_awaited(bridge):
    async with AsyncTransactionProducer("test", Answers(UNKNOWN), bridge.settings) as producer:
        result = await producer.send_message_in_transaction(MESSAGE)
        with pytest.raises(UsageError, match=r"await bridge\.aio\.advance\(\)"):
            bridge.advance(10)
        with pytest.raises(UsageError, match=r"await bridge\.aio\.let_checks_be_due\(\)"):
            bridge.let_checks_be_due()
        await bridge.aio.advance(10)
        assert bridge.read_fate(result) is TransactionState.COMMITTED


def test_a_loop_in_another_thread_answers(bridge):
    """As when a test client runs the application on a loop of its own."""
    producer = Asyncio("test", Answers(UNKNOWN), bridge.settings)
    result = producer.send(MESSAGE)
    assert bridge.let_checks_be_due() == 1
    assert bridge.read_fate(result) is TransactionState.COMMITTED
    producer.close()
    producer.end_loop()


def test_a_loop_that_has_ended_is_named(bridge):
    async def send():
        producer = AsyncTransactionProducer("test", Answers(UNKNOWN), bridge.settings)
        await producer.send_message_in_transaction(MESSAGE)
        return producer

    producer = asyncio.run(send())
    with pytest.raises(UsageError, match="the event loop of the producer of group test does not run"):
        bridge.let_checks_be_due()
    producer._calls_in.shutdown()


def test_a_check_of_a_running_transaction_does_not_ask(bridge):
    listener = Answers(lambda *_: (bridge.let_checks_be_due(), COMMIT)[1])
    result = bridge.start_producer(listener).send_message_in_transaction(MESSAGE)
    assert bridge.read_fate(result) is TransactionState.COMMITTED
    assert listener.checked == []


def test_time_passes_in_its_order(bridge):
    listener = Answers(UNKNOWN, UNKNOWN)
    producer = bridge.start_producer(listener)
    result = producer.send_message_in_transaction(MESSAGE)
    bridge.advance(5.999)
    assert listener.checked == []
    bridge.advance(60.001)
    assert [(check.check_times, check.age) for check in listener.checked] == [(1, 6.0), (2, 36.0), (3, 66.0)]
    bridge.advance(3_600)
    assert len(listener.checked) == 15
    assert bridge.read_fate(result) is TransactionState.DISCARDED
    [discarded] = bridge.read_discarded()
    assert (discarded.value(), dict(discarded.headers())["TXB_REASON"]) == (b"value", b"MAX_CHECKS")
    # A delay counts from the send, however far the clock was moved before, and when the message was made.
    message = Message("orders", b"later", delay=20)
    time.sleep(0.3)
    listener.execute = COMMIT
    later = producer.send_message_in_transaction(message)
    bridge.advance(19.999)
    assert bridge.read_fate(later) is TransactionState.SCHEDULED
    bridge.advance(1)
    assert values(bridge) == [b"later"]


def test_a_time_in_the_past_is_no_delay(bridge):
    producer = bridge.start_producer(Answers())
    # The clock of the sender goes on, that of the bridge stands still.
    while time.time() * 1000 <= bridge.now + 1:
        time.sleep(0.001)
    producer.send_message_in_transaction(Message("orders", b"at once", deliver_at=0))
    assert values(bridge) == [b"at once"]


def test_a_delay_that_the_worker_refuses_is_set_aside():
    with MemoryBridge(CheckPolicy(longest_delay=1_000)) as bridge:
        result = bridge.start_producer(Answers()).send_message_in_transaction(Message("orders", b"value", delay=3_600))
        assert bridge.read_fate(result) is TransactionState.DISCARDED
        [refused] = bridge.read_discarded()
        assert dict(refused.headers())["TXB_REASON"] == b"MALFORMED"


def test_a_bridge_that_has_ended_takes_no_producer(bridge):
    with MemoryBridge() as ended:
        settings = ended.settings
    with pytest.raises(UsageError, match="has ended"):
        TransactionProducer("test", Answers(), settings).start()


def test_a_test_takes_milliseconds(engine):
    def one_test() -> float:
        started = time.process_time()
        with MemoryBridge() as bridge:
            producer = bridge.start_producer(SqlTransactionListener(engine, lambda *_: None))
            bridge.lose_decision()
            result = producer.send_message_in_transaction(MESSAGE)
            bridge.let_checks_be_due()
            assert bridge.read_fate(result) is TransactionState.COMMITTED
        return time.process_time() - started

    assert statistics.median(one_test() for _ in range(9)) < 0.05
