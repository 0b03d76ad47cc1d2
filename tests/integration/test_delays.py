"""P13 on a real Kafka: a message with a delivery time is delivered once when it has come, and never before."""

from __future__ import annotations

import time

from confluent_kafka import TopicPartition

from tests.support.harness import COMMIT, ROLLBACK, Bridge, Prepared, eventually
from tests.support.listeners import Commits
from tests.support.message_frames import Framed, write
from txbridge import Message, TransactionProducer, TransactionSendResult
from txbridge.core.states import TransactionState
from txbridge.kafka.environment import Outside
from txbridge.operations import Selection, list_pending
from txbridge.operations.commands import resolve
from txbridge.operations.history import read_history
from txbridge.operations.model import NextStep, Result
from txbridge.operations.view import Action

SCHEDULED = frozenset({TransactionState.SCHEDULED})
HOUR = 3_600_000


def now() -> int:
    """Milliseconds of this machine's clock, which is Kafka's as well."""
    return time.time_ns() // 1_000_000


def prepare(bridge: Bridge, topic: str, value: bytes, deliver_at: int) -> Prepared:
    return bridge.prepare(topic, value, partition=0, extra=[("TXB_DELIVER_AT", b"%d" % deliver_at)])


def send(bridge: Bridge, *messages: Message) -> TransactionSendResult:
    """Send several messages in one transaction that is committed."""
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with TransactionProducer("group", Commits(), settings, namespace=bridge.namespace) as producer:
        sent = producer.send_message_in_transaction(messages)
        sent.wait(60)
    return sent


def prepare_steps(bridge: Bridge, topic: str, values: tuple[bytes, bytes], due: int) -> Prepared:
    """Prepare a transaction with one message for now and one for this time."""
    frames = write([Framed(topic, None, values[0]), Framed(topic, None, values[1], deliver_at=due)])
    return bridge.prepare(topic, frames, partition=0, extra=[("TXB_MESSAGES", b"2")])


def scheduled(bridge: Bridge, count: int) -> None:
    eventually(lambda: bridge.parked_states(0) == ["scheduled"] * count)


def delivered_at(bridge: Bridge, prepared: Prepared) -> int:
    """Append time of the OP record that names the message, from the Kafka transaction that delivered it."""
    [record] = [
        record
        for record in bridge.read(bridge.names.op)
        if b"%d" % prepared.offset in (record.value() or b"").split(b",") and record.partition() == prepared.partition
    ]
    return record.timestamp()[1]


class Clock(Outside):
    """A clock that the test moves ahead."""

    ahead = 0

    def shift(self) -> int:
        return self.ahead


def test_p13_it_is_delivered_when_its_time_comes_and_an_earlier_commit_waits(bridge: Bridge) -> None:
    topic, due, clock = bridge.create_topic("real", partitions=1), now() + HOUR, Clock()
    with bridge.local_owner(outside=clock):
        late, soon, at_once = (
            prepare(bridge, topic, b"late", due + 1_000),
            prepare(bridge, topic, b"soon", due),
            prepare(bridge, topic, b"at once", now() - 1_000),
        )
        never = prepare(bridge, topic, b"never", due)
        for one in (late, soon, at_once):
            bridge.decide(one, COMMIT)
        bridge.decide(never, ROLLBACK)
        bridge.wait_visible(topic, [b"at once"])
        scheduled(bridge, 2)
        # The stored commit stands.
        bridge.decide(soon, ROLLBACK)
        eventually(lambda: bridge.checkpoint(0)["end"] == bridge.bounds(bridge.names.end, 0)[1])
        assert bridge.visible(topic) == {b"at once": 1}
        clock.ahead = 2 * HOUR
        bridge.wait_visible(topic, [b"late", b"soon"])
        eventually(lambda: not bridge.parked_states(0))
    assert [message.value() for message in bridge.read(topic)] == [b"at once", b"soon", b"late"]
    assert bridge.outcomes()[0, never.offset] == ["rollback"]


def test_p13_a_worker_that_is_killed_while_it_is_scheduled_neither_loses_nor_doubles_it(bridge: Bridge) -> None:
    topic, due, clock = bridge.create_topic("real"), now() + HOUR, Clock()
    worker = bridge.worker()
    decided = [prepare(bridge, topic, b"decided %d" % number, due) for number in range(20)]
    undecided = prepare(bridge, topic, b"decided by the other", due)
    bridge.decide_many(decided, COMMIT)
    eventually(lambda: bridge.parked_states(0).count("scheduled") == 20)
    worker.kill()
    with bridge.local_owner(outside=clock, park_after=500):
        eventually(lambda: len(bridge.parked_states(0)) == 21)
    with bridge.local_owner(outside=clock):
        # The new owner knows the time from the parked entry alone.
        bridge.decide(undecided, COMMIT)
        scheduled(bridge, 21)
        assert bridge.visible(topic) == {}
        clock.ahead = 2 * HOUR
        bridge.wait_visible(topic, [*(b"decided %d" % number for number in range(20)), b"decided by the other"])
        eventually(lambda: not bridge.parked_states(0))
    assert set(bridge.visible(topic).values()) == {1}
    assert all(bridge.outcomes()[0, one.offset] == ["commit"] for one in (*decided, undecided))


def test_one_whose_topic_is_missing_when_it_is_due_is_held_and_delivered_later(bridge: Bridge) -> None:
    missing, due = f"{bridge.namespace}.missing", now() + 2_000
    with bridge.local_owner():
        bridge.decide(prepare(bridge, missing, b"x", due), COMMIT)
        eventually(lambda: bridge.parked_states(0) == ["held"])
        assert now() >= due
        bridge.create_topic("missing")
        bridge.wait_visible(missing, [b"x"])
        eventually(lambda: not bridge.parked_states(0))


def test_p12_p13_each_of_several_messages_comes_at_its_time_though_a_worker_is_killed_in_between(
    bridge: Bridge,
) -> None:
    orders, reminders = bridge.create_topic("orders"), bridge.create_topic("reminders")
    first = bridge.worker()
    # Long enough for a busy machine to look at it and to kill the worker.
    due = now() + 12_000
    sent = send(bridge, Message(reminders, b"unpaid?", deliver_at=due), Message(orders, b"1"), Message(orders, b"2"))
    bridge.wait_visible(orders, [b"1", b"2"])
    where = sent.half_partition
    eventually(lambda: bridge.parked_states(where) == ["scheduled"])
    [waiting] = list_pending(bridge.connection(), Selection(states=SCHEDULED)).messages
    assert (waiting.progress, waiting.next_due) == ("2 of 3 delivered", due)
    first.kill()
    assert (bridge.visible(reminders), bridge.outcomes()) == ({}, {})
    with bridge.local_owner(where):
        bridge.wait_visible(reminders, [b"unpaid?"])
        eventually(lambda: not bridge.parked_states(where))
    assert bridge.outcomes() == {(where, sent.half_offset): ["commit"]}
    assert delivered_at(bridge, Prepared(where, sent.half_offset, sent.transaction_id)) >= due
    numbers = {record.value(): dict(record.headers())["TXB_MESSAGE"] for record in bridge.read(orders)}
    assert (numbers, bridge.visible(orders)) == ({b"1": b"2/3", b"2": b"3/3"}, {b"1": 1, b"2": 1})


def test_p12_what_is_left_after_the_first_step_is_given_up_even_without_a_body(bridge: Bridge) -> None:
    topic, clock, due = bridge.create_topic("real"), Clock(), now() + HOUR
    with bridge.local_owner(outside=clock):
        cancelled, gone = (prepare_steps(bridge, topic, values, due) for values in ((b"a1", b"a2"), (b"b1", b"b2")))
        for one in (cancelled, gone):
            bridge.decide(one, COMMIT)
        scheduled(bridge, 2)
        connection = bridge.connection()
        answer = resolve(connection, f"0:{cancelled.offset}", Action.ABANDON, reason="paid", operator="me")
        assert (answer.result, "what was not delivered before" in answer.detail) == (Result.ABANDONED, True)
        last = read_history(connection, f"0:{gone.offset}").steps[-1]
        assert (last.what, last.detail.partition(",")[0]) == ("not all delivered yet", "1 of 2 delivered")
    end = TopicPartition(bridge.names.half, 0, gone.offset + 1)
    bridge.admin.delete_records([end])[end].result(60)
    with bridge.local_owner(outside=clock):
        clock.ahead = 2 * HOUR
        eventually(lambda: bridge.parked_states(0) == ["held"])
        [held] = list_pending(connection).messages
        assert (held.gone, held.error, held.progress) == (
            *(True, "retention has deleted its half message from HALF", "1 of 2 delivered"),
        )
        done = resolve(connection, f"0:{gone.offset}", Action.ABANDON, reason="lost", operator="me")
        assert done.result is Result.ABANDONED
    assert bridge.visible(topic) == {b"a1": 1, b"b1": 1}
    assert [record["TXB_DELIVERED"] for record in bridge.discarded()] == [b"1", b"1"]


def test_a_person_sees_what_is_scheduled_and_cancels_one(bridge: Bridge) -> None:
    topic, due = bridge.create_topic("real"), now() + 3_600_000
    with bridge.local_owner():
        kept, cancelled = prepare(bridge, topic, b"kept", due), prepare(bridge, topic, b"cancelled", due + 1)
        for one in (kept, cancelled):
            bridge.decide(one, COMMIT)
        scheduled(bridge, 2)
        connection, where = bridge.connection(), f"0:{cancelled.offset}"
        assert list_pending(connection).total == 0, "nothing that a person has to do"
        first, second = list_pending(connection, Selection(states=SCHEDULED)).messages
        assert (first.next_step, first.next_due, second.next_due) == (NextStep.DELIVER, due, due + 1)
        refused = resolve(connection, where, Action.ROLLBACK, reason="no", operator="me")
        assert refused.result is Result.REFUSED
        assert "it is committed already" in refused.detail
        assert resolve(connection, where, Action.ABANDON, dry_run=True).result is Result.WOULD_ABANDON
        answer = resolve(connection, where, Action.ABANDON, reason="the customer called", operator="me")
        assert answer.result is Result.ABANDONED
        assert bridge.parked_states(0) == ["scheduled"]
        history = read_history(connection, where)
        told = [(step.what, step.detail) for step in history.steps]
        assert ("END abandon", f"abandon me, END offset {answer.end_offset}: the customer called") in told
        assert read_history(connection, f"0:{kept.offset}").steps[-1].what == "not delivered yet"
    [record] = bridge.discarded()
    assert (record["TXB_REASON"], record["TXB_REMARK"], record["CLIENT_ID"]) == (
        b"ABANDONED",
        b"the customer called",
        b"me",
    )
    assert bridge.outcomes()[0, cancelled.offset] == ["abandon"]


def test_a_time_beyond_the_longest_delay_is_malformed(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(longest_delay=10_000):
        far = prepare(bridge, topic, b"far", now() + 3_600_000)
        eventually(bridge.discarded)
        bridge.decide(far, COMMIT)
        bridge.deliver(topic, b"after")
    [record] = bridge.discarded()
    assert record["TXB_REASON"] == b"MALFORMED"
    assert b"timer_max_delay is 10 s" in record["TXB_ERROR"]
