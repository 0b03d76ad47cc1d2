"""P14: messages are delivered in the order of their decisions, whatever their sizes and however many wait."""

from __future__ import annotations

import random
import time

import pytest
from structlog.testing import capture_logs

from tests.support.harness import COMMIT, Bridge, Prepared, eventually
from tests.support.kafka_proxy import EndTxnProxy


def _prepare(bridge: Bridge, topic: str, count: int, size: int) -> list[Prepared]:
    prepared: list[Prepared] = []
    # Random bytes, which no compression makes smaller.
    body = random.Random(7).randbytes
    for first in range(0, count, 20):
        values = [b"%06d" % number + body(size) for number in range(first, min(first + 20, count))]
        prepared += bridge.prepare_many(topic, values, partition=0)
    return prepared


def _delivered(bridge: Bridge, topic: str) -> list[int]:
    return [int((message.value() or b"")[:6]) for message in bridge.read(topic)]


def _wait_applied(bridge: Bridge, timeout: float) -> None:
    end = bridge.bounds(bridge.names.end, 0)[1]
    eventually(lambda: bridge.checkpoint(0).get("end") == end, timeout, "END was not applied to its end")


@pytest.mark.parametrize(("count", "size"), [(40, 900_000), (300, 100_000)])
def test_p14_large_messages_keep_their_order_after_an_outage(bridge: Bridge, count: int, size: int) -> None:
    topic = bridge.create_topic("real", 1)
    bridge.decide_many(_prepare(bridge, topic, count, size), COMMIT, batch=1)
    with bridge.local_owner(transaction_timeout=600_000, park_after=600_000):
        _wait_applied(bridge, 60)
    assert _delivered(bridge, topic) == [*range(count)]
    assert not any(b"/0/" in (message.key() or b"") for message in bridge.read(bridge.names.offset)), "one was parked"


def test_p2_held_messages_have_their_share_while_decisions_fill_every_transaction(bridge: Bridge) -> None:
    topic, late = bridge.create_topic("real", 1), f"{bridge.namespace}.late"
    options = {"transaction_timeout": 600_000, "bytes": 1_000}
    held = bridge.prepare_many(late, [bytes(300)] * 2, partition=0)
    bridge.decide_many(held, COMMIT)
    with bridge.local_owner(**options):
        eventually(lambda: bridge.parked_states(0) == ["held", "held"])
    bridge.create_topic("late", 1)
    prepared = _prepare(bridge, topic, 200, 300)
    bridge.decide_many(prepared, COMMIT, batch=1)
    # The back-off of the held messages is over when the next owner starts.
    time.sleep(1)
    with bridge.local_owner(**options):
        _wait_applied(bridge, 60)
    order = [[int(half) for half in (record.value() or b"").split(b",")] for record in bridge.read(bridge.names.op)]
    # Decisions fill three Kafka transactions. The fourth one takes the held messages, unless an earlier one had room
    # for them.
    waiting = {one.offset for one in held}
    assert max(number for number, halves in enumerate(order) if waiting & set(halves)) < 8
    assert len(order) > 50
    assert [half for halves in order for half in halves if half not in waiting] == [one.offset for one in prepared]


def test_p2_p14_a_slow_link_delivers_all_in_order_and_holds_nothing(proxy: EndTxnProxy, proxied_servers: str) -> None:
    with Bridge(proxied_servers, "slow link", partitions=1) as bridge:
        topic = bridge.create_topic("real", 1)
        bridge.decide_many(_prepare(bridge, topic, 500, 20_000), COMMIT, batch=1)
        proxy.rate = 1_000_000
        try:
            with bridge.local_owner(transaction_timeout=600_000, park_after=600_000), capture_logs() as logs:
                # The link needs 10 s. Before that the largest Kafka transaction is tried for 5 s.
                _wait_applied(bridge, 60)
        finally:
            proxy.rate = None
        assert _delivered(bridge, topic) == [*range(500)]
        assert [entry["event"] for entry in logs if entry["event"] == "held"] == []


def test_p8_a_topic_that_takes_nothing_delays_the_others_once_a_back_off(
    proxy: EndTxnProxy, proxied_servers: str
) -> None:
    with Bridge(proxied_servers, "deaf", partitions=1) as bridge:
        deaf, other = bridge.create_topic("deaf", 1), bridge.create_topic("other", 1)
        values = [b"deaf %d" % number for number in range(200)]
        prepared = bridge.prepare_many(deaf, values, partition=0)
        proxy.swallowed = deaf
        try:
            # The worker waits for a record for half of the commit time-out.
            with bridge.local_owner(commit_timeout=6_000), capture_logs() as logs:
                bridge.decide_many(prepared, COMMIT, batch=1)
                for number in range(6):
                    bridge.deliver(other, b"other %d" % number)
                # One time-out. There is neither one for each of 200 messages, nor a second one to find the topic.
                assert [entry["count"] for entry in logs if entry["event"] == "held"] == [200]
                assert not [entry for entry in logs if entry["event"] == "records_timed_out"]
                proxy.swallowed = None
                bridge.wait_visible(deaf, values, 60)
        finally:
            proxy.swallowed = None
        assert set(bridge.visible(deaf).values()) == {1}
