"""A broker that no longer leads a partition, but answers like its leader: records it lacks are not taken for absent."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Message

from tests.support.harness import COMMIT, Bridge, eventually
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.partition_reader import PartitionReader


class FormerLeader:
    """Answers readers of one topic, in this process, with the records from before it lost its leadership."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.end: int | None = None
        self.asked = 0
        poll: Callable[[PartitionReader, int, float], list[Message]] = PartitionReader.poll
        ask_end: Callable[[LogEnds, str, int], int] = LogEnds._ask_end

        def stale_poll(reader: PartitionReader, limit: int, timeout: float) -> list[Message]:
            end = self.end
            if end is None or reader.topic != topic:
                return poll(reader, limit, timeout)
            if reader.position >= end:
                time.sleep(timeout)
                return []
            found = [message for message in poll(reader, limit, timeout) if (message.offset() or 0) < end]
            if reader.position > end:
                reader.start(end)
            return found

        def stale_end(ends: LogEnds, asked_topic: str, partition: int) -> int:
            end = ask_end(ends, asked_topic, partition)
            if self.end is not None and asked_topic == topic:
                self.asked += 1
                return min(end, self.end)
            return end

        monkeypatch.setattr(PartitionReader, "poll", stale_poll)
        monkeypatch.setattr(LogEnds, "_ask_end", stale_end)


def test_p2_a_decision_waits_while_a_former_leader_of_half_does_not_know_its_message(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bridge.create_topic("real")
    former = FormerLeader(monkeypatch, bridge.names.half)
    with bridge.local_owner():
        bridge.deliver(topic, b"before")
        former.end = bridge.bounds(bridge.names.half, 0)[1]
        prepared = bridge.prepare(topic, b"acknowledged", partition=0)
        bridge.decide(prepared, COMMIT)
        eventually(lambda: former.asked >= 3, 20, "nobody asked where HALF ends")
        former.end = None
        bridge.wait_visible(topic, [b"acknowledged"])


def test_p8_what_is_not_in_half_is_refused_in_the_end_and_stops_nobody_for_long(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner():
        first = bridge.prepare(topic, b"first", partition=0)
        bridge.decide(first, COMMIT)
        for number in range(20):
            bridge.end([f"{10**12 + number},{'F' * 32},8"], 0)
        bridge.decide(bridge.prepare(topic, b"second", partition=0), COMMIT)
        bridge.wait_visible(topic, [b"first", b"second"], 20)
        # Many unknown half messages wait together. They do not delay the decisions between them once each.
        started = time.monotonic()
        for number in range(10):
            bridge.end([f"{10**12 + number},{'F' * 32},8"], 0)
            bridge.decide(bridge.prepare(topic, b"%d" % number, partition=0), COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(10)], 40)
        assert time.monotonic() - started < 60


@pytest.mark.parametrize("short", ["offset", "op"])
def test_p3_a_take_over_that_a_former_leader_answers_writes_nothing(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=600_000):
        undecided = bridge.prepare(topic, b"undecided", partition=0)
        early = {name: bridge.bounds(getattr(bridge.names, name), 0)[1] for name in ("offset", "op")}
        prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(5)], partition=0)
        bridge.decide_many(prepared, COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(5)])
    checkpoint = bridge.checkpoint(0)
    former = FormerLeader(monkeypatch, getattr(bridge.names, short))
    former.end = early[short]
    owner = bridge.local_owner(park_after=600_000)
    time.sleep(4)
    assert not owner.owner.status.serving
    assert bridge.checkpoint(0) == checkpoint
    former.end = None
    owner.wait_serving(60)
    bridge.decide(undecided, COMMIT)
    bridge.wait_visible(topic, [b"undecided"])
    assert set(bridge.visible(topic).values()) == {1}
    owner.stop()
