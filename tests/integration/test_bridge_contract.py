"""One contract on two bridges: the one in memory, and the Sandbox on Kafka. All expected values are written by hand."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from random import Random
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from txbridge_sqlalchemy import SqlTransactionListener, create_table

from tests.support.harness import eventually
from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN
from txbridge import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    CancelOutcome,
    EndTransactionError,
    Message,
    Rollback,
    TransactionListener,
    TransactionProducer,
    UsageError,
)
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.decide.decision_sender import DecisionSender
from txbridge.embedded import EmbeddedKafka
from txbridge.testing import ProcessBackend, Sandbox, TransactionState
from txbridge.testing.fates import FATES
from txbridge.testing.memory import CheckPolicy, MemoryBridge

#: Of both bridges.
CHECK_MAX = 2


class Scripted(TransactionListener):
    """The test gives the result of the local transaction. Checks get the answers of a list, then unknown."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def execute_local_transaction(self, message, arg):
        if isinstance(arg, Exception):
            raise arg
        return arg

    def check_local_transaction(self, message):
        self.asked.append(message.check_times)
        return self.answers.pop(0) if self.answers else UNKNOWN


class Coroutines(AsyncTransactionListener):
    """The same for asyncio."""

    def __init__(self, *answers) -> None:
        self.scripted = Scripted(*answers)

    async def execute_local_transaction(self, message, arg):
        return arg

    async def check_local_transaction(self, message):
        return self.scripted.check_local_transaction(message)


class OnKafka(Sandbox):
    """A Sandbox with the words that are easy in memory alone."""

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    def lose_decision(self) -> None:
        """Let the sender of decisions drop the next one, as the end of its process would."""
        patch = pytest.MonkeyPatch()

        def drop(_, __, entry, ___, size):
            patch.undo()
            ticket = Ticket(entry, size)
            ticket.settle_with(EndTransactionError("lost"))
            return ticket

        patch.setattr(DecisionSender, "submit_command", drop)


@pytest.fixture(scope="module")
def on_kafka(kafka: EmbeddedKafka) -> Iterator[OnKafka]:
    with (
        ProcessBackend(kafka.bootstrap_servers) as backend,
        OnKafka(backend, options={"transaction_check_max": CHECK_MAX}) as sandbox,
    ):
        sandbox.start_worker()
        yield sandbox


@pytest.fixture(params=["memory", "kafka"])
def bridge(request) -> Iterator[MemoryBridge | OnKafka]:
    if request.param == "kafka":
        yield request.getfixturevalue("on_kafka")
    else:
        with MemoryBridge(CheckPolicy(transaction_check_max=CHECK_MAX)) as bridge:
            yield bridge


@pytest.fixture
def topic(bridge, request) -> str:
    """A real topic of the test alone. Its name serves as the producer group, too."""
    return bridge.create_topic(request.node.originalname)


def values(bridge, topic):
    return [message.value() for message in bridge.read_visible(topic)]


def test_a_commit_is_delivered_once_as_it_was_sent(bridge, topic):
    producer, wide = bridge.start_producer(Scripted(), topic), bridge.create_topic(f"{topic}.wide", 3)
    headers = [("trace", b"1"), ("trace", b"2"), ("none", None), ("empty", b"")]
    sent = Message(wide, b"value", b"\x00\xffkey", headers, timestamp=1_750_000_000_123, partition=2)
    result = producer.send_message_in_transaction(sent, COMMIT)
    result.wait(30)
    assert bridge.wait_fate(result) is TransactionState.COMMITTED
    [found] = bridge.read_visible(wide)
    assert (found.key(), found.value(), found.partition()) == (b"\x00\xffkey", b"value", 2)
    assert found.timestamp() == (1, 1_750_000_000_123)
    assert found.headers() == [
        *headers,
        ("UNIQ_KEY", result.transaction_id.encode()),
        ("TXB_HALF", b"%d:%d" % (result.half_partition, result.half_offset)),
    ]
    assert producer.is_connected
    assert producer.flush(30) == 0


def test_a_rollback_is_never_visible_and_its_sender_knows_why(bridge, topic):
    producer = bridge.start_producer(Scripted(), topic)
    refused = producer.send_message_in_transaction(Message(topic, b"refused"), Rollback("out of stock"))
    placed = producer.send_message_in_transaction(Message(topic, b"placed"), COMMIT)
    assert (refused.local_transaction_state, str(refused.local_exception)) == (ROLLBACK, "out of stock")
    assert (placed.local_transaction_state, placed.local_exception) == (COMMIT, None)
    assert bridge.wait_fate(refused) is TransactionState.ROLLED_BACK
    assert bridge.wait_fate(placed) is TransactionState.COMMITTED
    assert values(bridge, topic) == [b"placed"]


def test_unknown_is_checked_until_the_listener_knows(bridge, topic):
    listener = Scripted(UNKNOWN, COMMIT)
    producer = bridge.start_producer(listener, topic)
    result = producer.send_message_in_transaction(Message(topic, b"value"), UNKNOWN)
    assert bridge.read_fate(result) is TransactionState.PENDING
    assert [one.checks for one in bridge.list_pending()] == [0]
    assert bridge.let_checks_be_due() == 1
    assert [one.checks for one in bridge.list_pending()] == [1]
    assert values(bridge, topic) == []
    assert bridge.let_checks_be_due() == 1
    assert bridge.wait_fate(result) is TransactionState.COMMITTED
    assert values(bridge, topic) == [b"value"]
    assert listener.asked == [1, 2]
    assert bridge.let_checks_be_due() == 0


def test_a_lost_decision_is_found_by_a_check(bridge, topic):
    producer = bridge.start_producer(Scripted(COMMIT), topic)
    bridge.lose_decision()
    result = producer.send_message_in_transaction(Message(topic, b"value"), COMMIT)
    with pytest.raises(EndTransactionError):
        result.wait(30)
    assert bridge.read_fate(result) is TransactionState.PENDING
    assert bridge.let_checks_be_due() == 1
    assert bridge.wait_fate(result) is TransactionState.COMMITTED
    assert values(bridge, topic) == [b"value"]


def test_several_messages_become_visible_together_and_in_order(bridge, topic):
    other = bridge.create_topic(f"{topic}.other")
    producer = bridge.start_producer(Scripted(COMMIT), topic)
    messages = [Message(topic, b"1", b"k"), Message(other, b"2"), Message(topic, b"3", b"k")]
    result = producer.send_message_in_transaction(messages, UNKNOWN)
    assert (values(bridge, topic), values(bridge, other)) == ([], [])
    bridge.let_checks_be_due()
    assert bridge.wait_fate(result) is TransactionState.COMMITTED
    assert (values(bridge, topic), values(bridge, other)) == ([b"1", b"3"], [b"2"])
    assert [dict(one.headers())["TXB_MESSAGE"] for one in bridge.read_visible(topic)] == [b"1/3", b"3/3"]


def test_each_message_waits_for_its_time(bridge, topic):
    producer = bridge.start_producer(Scripted(), topic)
    alone = producer.send_message_in_transaction(Message(topic, b"alone", delay=3), COMMIT)
    several = producer.send_message_in_transaction(
        [Message(topic, b"reminder", delay=3), Message(topic, b"placed"), Message(topic, b"expired", delay=600)], COMMIT
    )
    without = producer.send_message_in_transaction(Message(topic, b"without", delay=600), COMMIT)
    waiting = {TransactionState.SCHEDULED}
    assert [bridge.wait_fate(one, waiting) for one in (alone, several, without)] == [*waiting] * 3
    assert [one.value() for one in bridge.wait_visible(topic)] == [b"placed"]
    bridge.advance(3)
    assert bridge.wait_fate(alone) is TransactionState.COMMITTED
    assert sorted(one.value() for one in bridge.wait_visible(topic, 3)) == [b"alone", b"placed", b"reminder"]
    assert [bridge.read_fate(one) for one in (several, without)] == [*waiting] * 2


def test_the_first_decision_counts(bridge, topic):
    producer = bridge.start_producer(Scripted(ROLLBACK), topic)
    bridge.lose_decision()
    result = producer.send_message_in_transaction(Message(topic, b"value"), COMMIT)
    bridge.let_checks_be_due()
    assert bridge.wait_fate(result) is TransactionState.ROLLED_BACK
    again = producer._lifetime.runtime.sends.send_commit_again
    again(result.transaction_id, result.half_partition, result.half_offset).result(30)
    # Decisions are applied in their order.
    marker = producer.send_message_in_transaction(Message(topic, b"marker"), COMMIT)
    assert bridge.wait_fate(marker) is TransactionState.COMMITTED
    assert bridge.read_fate(result) is TransactionState.ROLLED_BACK
    assert values(bridge, topic) == [b"marker"]


def test_after_the_last_check_a_transaction_is_discarded(bridge, topic):
    listener = Scripted()
    producer = bridge.start_producer(listener, topic)
    result = producer.send_message_in_transaction(Message(topic, b"value"), UNKNOWN)
    # Two checks, and the interval after the last one.
    assert [bridge.let_checks_be_due() for _ in range(3)] == [1, 1, 1]
    assert bridge.wait_fate(result) is TransactionState.DISCARDED
    eventually(lambda: listener.asked == [1, 2])
    assert values(bridge, topic) == []


def test_a_group_without_a_producer_burns_no_checks(bridge, topic):
    with TransactionProducer(topic, Scripted(), bridge.settings, namespace=bridge.namespace) as dead:
        # Later than the worker has parked it.
        sent = Message(topic, b"value", check_immunity_time=100)
        result = dead.send_message_in_transaction(sent, UNKNOWN)
    with pytest.raises(AssertionError, match=r"no check was sent"):
        bridge.let_checks_be_due(timeout=2)
    assert [one.checks for one in bridge.list_pending()] == [0]
    bridge.start_producer(heir := Scripted(COMMIT), topic)
    bridge.let_checks_be_due()
    assert bridge.wait_fate(result) is TransactionState.COMMITTED
    assert heir.asked == [1]


def test_submitted_messages_keep_their_order(bridge, topic):
    producer = bridge.start_producer(Scripted(), topic)
    futures = [producer.submit_message_in_transaction(Message(topic, b"%d" % number), COMMIT) for number in range(20)]
    assert producer.flush(30) == 0
    for future in futures:
        assert bridge.wait_fate(future.result(30)) is TransactionState.COMMITTED
    assert values(bridge, topic) == [b"%d" % number for number in range(20)]


async def test_a_producer_on_an_event_loop(bridge, topic, monkeypatch):
    async def forget(message, arg):
        return UNKNOWN

    listener = Coroutines(COMMIT)
    async with AsyncTransactionProducer(topic, listener, bridge.settings, namespace=bridge.namespace) as producer:
        first = await producer.send_message_in_transaction(Message(topic, b"1"), COMMIT)
        await first.wait(30)
        assert await bridge.aio.wait_fate(first) is TransactionState.COMMITTED
        late = await producer.send_message_in_transaction(Message(topic, b"late", delay=60), COMMIT)
        assert (await producer.cancel(late, "paid")).outcome is CancelOutcome.CANCELLED
        # A method that a test replaces is the one that counts.
        monkeypatch.setattr(listener, "execute_local_transaction", forget)
        second = await producer.send_message_in_transaction(Message(topic, b"2"), COMMIT)
        assert second.local_transaction_state is UNKNOWN
        assert await bridge.aio.let_checks_be_due() == 1
        assert await bridge.aio.wait_fate(second) is TransactionState.COMMITTED
        assert [one.value() for one in await bridge.aio.wait_visible(topic, 2)] == [b"1", b"2"]
    assert listener.scripted.asked == [1]


def test_the_sql_listener_on_sqlite(bridge, topic, tmp_path):
    file = tmp_path / "orders.sqlite"
    engine = create_engine(f"sqlite:///{file}")
    create_table(engine)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")

    def place_order(connection, message, number):
        if number > 9:
            raise Rollback("out of stock")
        connection.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})

    def place(number):
        return producer.send_message_in_transaction(Message(topic, b"%d" % number), number)

    producer = bridge.start_producer(SqlTransactionListener(engine, place_order), topic)
    placed, refused, twice = place(1), place(10), place(1)
    bridge.lose_decision()
    lost = place(2)
    assert bridge.wait_fate(placed) is TransactionState.COMMITTED
    assert bridge.wait_fate(refused) is TransactionState.ROLLED_BACK
    assert (refused.local_transaction_state, str(refused.local_exception)) == (ROLLBACK, "out of stock")
    assert bridge.let_checks_be_due() == 1
    assert bridge.wait_fate(twice) is TransactionState.ROLLED_BACK
    assert bridge.wait_fate(lost) is TransactionState.COMMITTED
    assert values(bridge, topic) == [b"1", b"2"]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT number FROM orders").fetchall() == [(1,), (2,)]
    engine.dispose()


def test_a_message_that_waits_for_its_time_is_cancelled_by_result_or_by_id(bridge, topic):
    producer = bridge.start_producer(Scripted(ROLLBACK), topic)
    messages = [Message(topic, b"later", delay=delay) for delay in (60, 60, 0)]
    by_result, by_id, at_once = (producer.send_message_in_transaction(message, COMMIT) for message in messages)
    undecided = producer.send_message_in_transaction(Message(topic, b"undecided", check_immunity_time=60), UNKNOWN)
    assert producer.cancel(by_result, "paid").outcome is CancelOutcome.CANCELLED
    assert [producer.cancel(by_id.transaction_id, "paid").outcome for _ in range(2)] == [CancelOutcome.CANCELLED] * 2
    bridge.wait_visible(topic)
    assert producer.cancel(at_once, "paid").outcome is CancelOutcome.DELIVERED
    assert producer.cancel(undecided, "paid").outcome is CancelOutcome.UNDECIDED
    assert producer.cancel("0" * 32, "paid").outcome is CancelOutcome.NOT_FOUND
    rolled_back = producer.send_message_in_transaction(Message(topic, b"rolled back"), ROLLBACK)
    assert bridge.wait_fate(rolled_back) is TransactionState.ROLLED_BACK
    assert producer.cancel(rolled_back.transaction_id, "paid").outcome is CancelOutcome.ROLLED_BACK
    stranger = bridge.start_producer(Scripted(), f"{topic}-strangers")
    for one in (by_result, by_id, at_once, undecided):
        assert stranger.cancel(one.transaction_id, "paid").outcome is CancelOutcome.NOT_FOUND
    assert stranger.cancel(by_result, "paid").outcome is CancelOutcome.NOT_FOUND
    for wrong, reason, refusal in (("0" * 31, "paid", "no transaction id"), (by_result, " ", "a reason is needed")):
        with pytest.raises(UsageError, match=refusal):
            producer.cancel(wrong, reason)
    assert values(bridge, topic) == [b"later"]
    assert [bridge.read_fate(one) for one in (by_result, by_id)] == [TransactionState.ABANDONED] * 2
    # Leave nothing open for other tests on this Kafka.
    bridge.let_checks_be_due()
    assert bridge.wait_fate(undecided) is TransactionState.ROLLED_BACK


HOUR_MS = 3_600_000


class Program:
    """Transactions of every kind, in a random order; the same for each bridge."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        now = time.time_ns() // 1_000_000
        self.steps = [self._step(random, number, now) for number in range(30)]

    @staticmethod
    def _step(random: Random, number: int, now: int) -> dict[str, Any]:
        message = {
            "value": b"%d" % number,
            "key": random.choice([None, b"k"]),
            "timestamp": random.choice([None] * 3 + [now - HOUR_MS, now + HOUR_MS // 2, now + 2 * HOUR_MS]),
            "partition": random.choice([None] * 6 + [0, 1, 2]),
            # Longer than the program takes on any machine: it is the clock of the bridge that makes a check due.
            "check_immunity_time": random.choice([None, None, 600, 1_200, 6_000]),
            "delay": random.choice([None] * 5 + [0, 100_000]),
        }
        return {
            "message": message,
            "several": random.choice([0] * 3 + [1, 2]),
            "result": random.choice([COMMIT, COMMIT, ROLLBACK, UNKNOWN, True, None, KeyError("x")]),
            "lost": random.random() < 0.2,
            "answer": random.choice([COMMIT, ROLLBACK, UNKNOWN]),
            "cancel": random.random() < 0.2,
        }

    def run(self, bridge: Any, topic: str) -> list[Any]:
        """What became of each transaction, what is visible in each partition, and how often was asked."""
        answers: dict[bytes, Any] = {}
        asked: Counter[bytes] = Counter()

        class Listener(TransactionListener):
            def execute_local_transaction(self, message, arg):
                if isinstance(arg, Exception):
                    raise arg
                return arg

            def check_local_transaction(self, message):
                asked[message.messages[0].value] += 1
                return answers[message.messages[0].value]

        told: list[Any] = []
        sent: dict[int, Any] = {}
        producer = bridge.start_producer(Listener(), topic)
        for number, step in enumerate(self.steps):
            answers[step["message"]["value"]] = step["answer"]
            if step["lost"]:
                bridge.lose_decision()
            try:
                messages = [Message(topic, **step["message"])] + [Message(topic, b"more", b"k")] * step["several"]
                result = producer.send_message_in_transaction(messages, step["result"])
            except UsageError as error:
                # Not sent, so no decision of it is lost.
                told.append(re.sub("topic [^ ]+", "topic", str(error)))
                continue
            sent[number] = result
            told.append((result.local_transaction_state, type(result.local_exception)))
            with suppress(EndTransactionError):
                result.wait(30)
        settled = {*FATES, TransactionState.HELD, TransactionState.SCHEDULED}
        # Two checks, the interval after the last one, and what was answered last.
        for _ in range(4):
            bridge.let_checks_be_due()
            # An answer comes a moment later. On a busy machine two more rounds would discard what it decides.
            for number, result in sent.items():
                if self.steps[number]["answer"] is not UNKNOWN:
                    bridge.wait_fate(result, settled)
        fates: dict[int, Any] = {}
        for number, result in sent.items():
            fates[number] = bridge.wait_fate(result, settled)
            if self.steps[number]["cancel"]:
                cancelled = producer.cancel(result, "not needed")
                fates[number] = fates[number], cancelled.outcome, cancelled.delivered
        visible = Counter((one.partition() if one.key() else None, one.value()) for one in bridge.read_visible(topic))
        return [told, fates, visible, asked]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 13))])
def test_random_programs_end_alike_on_both_bridges(on_kafka, seed):
    program = Program(seed)
    with MemoryBridge(CheckPolicy(transaction_check_max=CHECK_MAX)) as memory:
        in_memory = program.run(memory, memory.create_topic(f"program-{seed}", 2))
    told, fates, visible, asked = program.run(on_kafka, on_kafka.create_topic(f"program-{seed}", 2))
    assert in_memory[0] == told
    assert {n: (program.steps[n], f, fates[n]) for n, f in in_memory[1].items() if f != fates[n]} == {}
    assert in_memory[2] == visible
    # The last answers were unknown, and nothing above has waited for them.
    eventually(lambda: in_memory[3] == asked)
