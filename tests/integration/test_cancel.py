"""Cancel from the application, on a real Kafka: with a client's rights, by result or by id, and the answer is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest

from tests.integration.test_delays import Clock
from tests.support.harness import Bridge, LocalOwner, Prepared, eventually
from tests.support.listeners import Commits
from txbridge import CancelOutcome, Message, TransactionProducer, TransactionSendResult
from txbridge.operations.history import read_history

CANCELLED, DELIVERED = CancelOutcome.CANCELLED, CancelOutcome.DELIVERED
HOUR = timedelta(hours=1)


def producer_of(bridge: Bridge, group: str = "group") -> TransactionProducer:
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    return TransactionProducer(group, Commits(), settings, namespace=bridge.namespace)


def send(producer: TransactionProducer, topic: str, value: bytes, delay: timedelta = HOUR) -> TransactionSendResult:
    return producer.send_message_in_transaction(Message(topic, value, key=value, delay=delay))


@contextmanager
def serving(bridge: Bridge, **options: object) -> Iterator[list[LocalOwner]]:
    """Owners of both half partitions."""
    with ExitStack() as stack:
        yield [stack.enter_context(bridge.local_owner(number, **options)) for number in range(bridge.partitions)]


def test_a_scheduled_message_is_cancelled_and_never_delivered(bridge: Bridge) -> None:
    topic, clock = bridge.create_topic("real"), Clock()
    with serving(bridge, outside=clock), producer_of(bridge) as producer, producer_of(bridge) as other:
        # Their keys are of both half partitions. The other client of the group knows nothing but an id.
        kept, *cancelled = (send(producer, topic, b"%d" % number) for number in range(6))
        assert {one.half_partition for one in cancelled} == {0, 1}
        assert [producer.cancel(one, "the customer has paid").outcome for one in cancelled[:3]] == [CANCELLED] * 3
        by_id = [other.cancel(one.transaction_id, "the customer has paid") for one in cancelled[3:]]
        assert [one.outcome for one in by_id] == [CANCELLED] * 2
        # A repeat is told the same, in both ways.
        assert producer.cancel(cancelled[0], "again").outcome is CANCELLED
        assert producer.cancel(cancelled[0].transaction_id, "again").outcome is CANCELLED
        clock.ahead = 2 * 3_600_000
        bridge.wait_visible(topic, [b"0"])
        assert producer.cancel(kept, "too late").outcome is DELIVERED
        assert producer.cancel(kept.transaction_id, "too late").outcome is DELIVERED
    assert bridge.visible(topic) == {b"0": 1}
    assert {record["TXB_REMARK"] for record in bridge.discarded()} == {b"the customer has paid"}
    assert len(bridge.discarded()) == 5
    history = read_history(bridge.connection(), f"{cancelled[0].half_partition}:{cancelled[0].half_offset}")
    assert history.state == "cancelled"
    assert "the customer has paid" in next(step.detail for step in history.steps if step.what == "END cancel")


def test_of_several_messages_the_rest_is_cancelled_and_the_number_told(bridge: Bridge) -> None:
    now_topic, later = bridge.create_topic("now"), bridge.create_topic("later")
    with serving(bridge), producer_of(bridge) as producer:
        messages = [Message(now_topic, b"1"), Message(later, b"2", delay=HOUR), Message(now_topic, b"3")]
        sent = producer.send_message_in_transaction(messages)
        bridge.wait_visible(now_topic, [b"1", b"3"])
        # What its readers know is no right (tests/security/test_tenants.py).
        seen = dict(bridge.read(now_topic)[0].headers() or ())["UNIQ_KEY"].decode()
        assert producer.cancel(seen, "theirs").outcome is CancelOutcome.NOT_FOUND
        assert read_history(bridge.connection(), seen).short_id == sent.transaction_id[:8]
        results = [producer.cancel(one, "paid") for one in (sent.transaction_id, sent)]
        assert [(one.outcome, one.delivered) for one in results] == [(CANCELLED, 2)] * 2
    assert bridge.visible(later) == {}
    assert [record["TXB_DELIVERED"] for record in bridge.discarded()] == [b"2"]


def test_a_held_message_is_cancelled(bridge: Bridge) -> None:
    topic = f"{bridge.namespace}.missing"
    with serving(bridge), producer_of(bridge) as producer:
        sent = producer.send_message_in_transaction(Message(topic, b"held"))
        assert producer.cancel(sent, "wrong topic").outcome is CANCELLED
    assert bridge.outcomes() == {(sent.half_partition, sent.half_offset): ["abandon"]}


def test_in_a_race_with_the_delivery_exactly_one_answer_is_true(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    clock, answers = Clock(), []
    with serving(bridge, outside=clock), producer_of(bridge) as producer:
        sent = [send(producer, topic, b"%d" % number) for number in range(60)]
        for number, one in enumerate(sent):
            if number == 20:
                # Now the worker and the rest of this loop race.
                clock.ahead = 2 * 3_600_000
            if number == 55:
                eventually(lambda: bridge.visible(topic))
            answers.append(producer.cancel(one, "race").outcome)
        delivered = {b"%d" % number for number, answer in enumerate(answers) if answer is DELIVERED}
        assert set(answers) == {CANCELLED, DELIVERED}
        bridge.wait_visible(topic, sorted(delivered))
    assert bridge.visible(topic) == dict.fromkeys(delivered, 1)


def test_without_a_worker_it_says_so_and_a_command_that_is_stored_is_applied_later(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with producer_of(bridge) as producer:
        sent = send(producer, topic, b"cancelled")
        with pytest.raises(TimeoutError, match=r"nothing was cancelled.*half partition"):
            producer.cancel(sent.transaction_id, "r", timeout=1)
        with pytest.raises(TimeoutError, match=f"command stands in END.*half partition {sent.half_partition}"):
            producer.cancel(sent, "r", timeout=1)
        with serving(bridge):
            assert producer.cancel(sent, "r").outcome is CANCELLED
    assert bridge.outcomes() == {(sent.half_partition, sent.half_offset): ["abandon"]}


def test_without_a_check_topic_the_command_applies_and_nothing_stops(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with serving(bridge):
        with producer_of(bridge) as producer:
            sent = send(producer, topic, b"cancelled")
        eventually(lambda: bridge.parked_states(sent.half_partition) == ["scheduled"])
        check_topic = bridge.names.check("group")
        bridge.admin.delete_topics([check_topic])[check_topic].result(60)
        half = Prepared(sent.half_partition, sent.half_offset, sent.transaction_id)
        reply = [*bridge.end_headers("group", "abandon"), ("TXB_REPLY", b"nobody-waits")]
        bridge.produce(bridge.names.end, value=half.entry(0).encode(), headers=reply, partition=half.partition)
        bridge.wait_outcome(half, "abandon")
        bridge.deliver(topic, b"others go on", partition=half.partition)
