"""Limits of a connection, and the time for which the door is a member of a group."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from txbridge_rocketmq import groups as module
from txbridge_rocketmq import memory as memory_module
from txbridge_rocketmq import remoting_connection as connection_module
from txbridge_rocketmq import topics as topics_module
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.codes import RequestCode
from txbridge_rocketmq.door_options import DoorMetrics
from txbridge_rocketmq.groups import Groups
from txbridge_rocketmq.remoting import Remoting
from txbridge_rocketmq.remoting_connection import DoorConnection
from txbridge_rocketmq.topics import CheckTopics, LookUps, NoAnswerError

from tests.property.test_rocketmq_frames import SMALL, Handler, Wire, frame
from tests.support.rocketmq_door import frame as request_frame
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError
from txbridge.kafka.admin import UnwantedError


class Answers(Wire):
    """A transport that is open, and forgets what it sends."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        pass


def connected(handler: Handler) -> tuple[DoorConnection, Wire]:
    connection, wire = DoorConnection(handler), Wire()
    connection.connection_made(wire)
    return connection, wire


def test_a_frame_that_does_not_come_to_its_end_ends_its_connection() -> None:
    handler = Handler(1_000_000)
    connection, wire = connected(handler)
    connection.data_received(frame(1, b"x" * 100)[:-1])
    connection.close_if_stuck(time.monotonic() + 29)
    assert not wire.aborted
    connection.close_if_stuck(time.monotonic() + 31)
    assert wire.aborted
    connection.connection_lost(None)
    assert handler.memory.used == 0


async def test_a_client_that_takes_no_answers_is_not_read_and_not_asked_and_then_closed() -> None:
    handler = Handler(1_000_000)
    connection, wire = connected(handler)
    connection.pause_writing()
    connection.data_received(frame(2, b"later"))
    assert not connection.takes_checks
    assert not wire.reads
    assert handler.seen == []
    connection.resume_writing()
    assert [one.body for one in handler.seen] == [b"later"]
    assert wire.reads
    connection.pause_writing()
    connection.close_if_stuck(time.monotonic() + 29)
    assert not wire.aborted
    connection.close_if_stuck(time.monotonic() + 31)
    assert wire.aborted


async def test_a_connection_without_traffic_is_closed_unless_it_waits_for_an_answer() -> None:
    handler = Handler(1_000_000)
    connection, wire = connected(handler)
    connection.data_received(frame(1, b"being answered"))
    connection.close_if_stuck(time.monotonic() + 121)
    assert not wire.aborted
    handler.unfinished.pop()()
    connection.close_if_stuck(time.monotonic() + 119)
    assert not wire.aborted
    connection.close_if_stuck(time.monotonic() + 121)
    assert wire.aborted


async def test_what_does_not_fit_into_memory_waits_until_something_is_answered() -> None:
    handler = Handler(20_000)  # half is for requests that are coming; one of these takes 2 * 900 bytes and its objects
    first, _ = connected(handler)
    second, wire = connected(handler)
    gone, _ = connected(handler)
    first.data_received(frame(1, b"x" * 900))
    second.data_received(frame(3, b"y" * 900))
    gone.data_received(frame(5, b"z" * 900))
    assert [one.opaque for one in handler.seen] == [1]
    assert not wire.reads
    gone.connection_lost(None)
    handler.unfinished.pop(0)()
    await asyncio.sleep(0)
    assert [one.opaque for one in handler.seen] == [1, 3]
    assert wire.reads
    handler.unfinished.pop(0)()
    assert handler.memory.used == 0


async def test_requests_that_are_not_answered_are_bounded_for_each_connection() -> None:
    handler = Handler(100_000_000)
    connection, wire = connected(handler)
    connection.data_received(b"".join(frame(2 * number + 1, b"") for number in range(2_000)))
    assert len(handler.seen) == 1_024
    assert not wire.reads
    while handler.unfinished:
        handler.unfinished.pop(0)()
        await asyncio.sleep(0)
    assert len(handler.seen) == 2_000
    assert wire.reads


async def test_at_the_end_no_request_begins_and_the_connection_is_read_until_all_are_answered() -> None:
    handler = Handler(1_000)
    connection, wire = connected(handler)
    connection.data_received(frame(1, b"x" * 900))
    connection.data_received(frame(3, b"waits for memory" * 50))
    assert not wire.reads
    connection.drop_requests()
    assert wire.reads
    connection.data_received(frame(5, b"comes later"))
    handler.unfinished.pop()()
    await asyncio.sleep(0.01)
    assert [one.opaque for one in handler.seen] == [1]
    assert wire.reads
    connection.connection_lost(None)
    assert handler.memory.used == 0


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_connection_that_is_lost_before_its_heartbeat_is_handled_joins_no_group(*, is_lost: bool) -> None:
    members: list[object] = []
    door = SimpleNamespace(
        metrics=DoorMetrics(),
        memory=memory_module.RequestMemory(1_000),
        groups=SimpleNamespace(drop_member=lambda _: members.clear()),
        set_groups=lambda member, *_: members.append(member),
        setting=SimpleNamespace(access=AccessKeys()),
        spawn_task=asyncio.ensure_future,
    )
    remoting = Remoting(door, SimpleNamespace(handlers={}))  # type: ignore[arg-type]
    connection = DoorConnection(remoting)
    connection.connection_made(Answers())
    connection.data_received(
        request_frame(RequestCode.HEART_BEAT, {}, b'{"producerDataSet": [{"groupName": "group"}]}')
    )
    if is_lost:
        connection.connection_lost(None)
    await asyncio.sleep(0.01)
    assert members == ([] if is_lost else [connection])
    assert door.memory.used == 0


def test_a_length_is_judged_before_anything_is_kept() -> None:
    handler = Handler(1_000)
    connection, wire = connected(handler)
    connection.data_received(struct.pack(">i", 2 * 1024 * 1024))
    assert wire.aborted
    assert handler.memory.used == 0


@pytest.mark.parametrize("pause", [2.0, 0.5], ids=["stands still", "drips"])
async def test_a_slow_frame_loses_its_memory_when_others_need_it(monkeypatch: pytest.MonkeyPatch, pause: float) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1_000.0)
    monkeypatch.setattr(connection_module, "time", clock)
    for name, value in SMALL.items():
        monkeypatch.setattr(memory_module, name, value)
    handler = Handler(2_000)
    handler.max_frame = 1_000
    slow, wire = connected(handler)
    slow.data_received(frame(1, b"x" * 900)[:150])
    while clock.now < 1_020:
        clock.now += pause
        if pause < 1:
            slow.data_received(b"x")
        slow.close_if_stuck(clock.now)
    assert not wire.aborted
    other, other_wire = connected(handler)
    other.data_received(frame(3, b"y" * 900)[:150])
    assert not other_wire.reads
    slow.close_if_stuck(clock.now)
    assert wire.aborted
    slow.connection_lost(None)
    await asyncio.sleep(0)
    assert other_wire.reads
    other.data_received(frame(3, b"y" * 900)[150:])
    assert [one.opaque for one in handler.seen] == [3]


class Cluster:
    """Topics and memberships of a Kafka that answers at once."""

    def __init__(self, *check_topics: str) -> None:
        self.check_topics = set(check_topics)
        self.joined: list[str] = []
        self.left: list[str] = []
        self.takers: list[Callable[..., None]] = []
        self.asked: list[tuple[str, Any, list[Any]]] = []
        self.looks: list[list[str]] = []
        self.stopped: list[str] = []
        self.is_away = self.is_slow = False

    def look(self, topics: Sequence[str]) -> dict[str, int | NoAnswerError]:
        self.looks.append(list(topics))
        if self.is_away:
            raise NoAnswerError
        return {topic: int(topic in self.check_topics) for topic in topics}

    def join(self, group: str, take: Callable[..., None], is_unwanted: Callable[[], bool]) -> Any:
        while self.is_slow and not is_unwanted():
            time.sleep(0.01)
        if is_unwanted():
            raise UnwantedError("the door ends")
        self.joined.append(group)
        self.takers.append(take)
        return SimpleNamespace(stop=lambda: self.stopped.append(group), close=lambda _: self.left.append(group))

    def ask(self, group: str, request: Any, members: list[Any]) -> None:
        self.asked.append((group, request, members))

    def groups(self, most: int = 10) -> Groups:
        topics = CheckTopics(lambda *_: False, most)
        return Groups(LookUps(self.look, 1), str, topics, self.join, self.ask, DoorMetrics(), most)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  of threads
            await asyncio.sleep(0.01)


class Member:
    """The part of a connection that groups use."""

    groups: frozenset[str] = frozenset()


def member() -> Any:
    return Member()


async def test_a_group_is_joined_for_as_long_as_one_of_it_is_connected() -> None:
    cluster, first, second = Cluster("orders"), member(), member()
    groups = cluster.groups()
    groups.set_groups(first, frozenset({"orders"}))
    await until(lambda: cluster.joined == ["orders"])
    groups.set_groups(second, frozenset({"orders"}))
    groups.drop_member(first)
    await asyncio.sleep(0.05)
    assert cluster.left == []
    groups.leave_group(second, "orders")
    await until(lambda: cluster.left == ["orders"])
    groups.set_groups(second, frozenset({"orders"}))
    await until(lambda: cluster.joined == ["orders", "orders"])
    await groups.close()
    assert cluster.left == ["orders", "orders"]


async def test_a_group_of_plain_producers_is_not_joined_until_it_sends_a_transaction() -> None:
    cluster, connection = Cluster(), member()
    groups = cluster.groups()
    groups.set_groups(connection, frozenset({"plain"}))
    await asyncio.sleep(0.05)
    assert cluster.joined == []
    assert await groups.note_transactional("plain") == ""
    await until(lambda: cluster.joined == ["plain"])
    # It has sent before its first heartbeat.
    await groups.note_transactional("early")
    groups.set_groups(connection, frozenset({"plain", "early"}))
    await until(lambda: cluster.joined == ["plain", "early"])
    await groups.close()


async def test_no_more_groups_are_joined_than_wanted() -> None:
    cluster, connection = Cluster("one", "two"), member()
    groups = cluster.groups(most=1)
    groups.set_groups(connection, frozenset({"one", "two"}))
    await until(lambda: len(cluster.joined) == 1)
    await asyncio.sleep(0.05)
    assert len(cluster.joined) == 1
    # close() does not wait for the next attempt.
    await asyncio.wait_for(groups.close(), 20)


async def test_checks_go_to_the_members_in_turn_and_wait_while_there_is_none() -> None:
    cluster, first, second = Cluster("orders"), member(), member()
    groups, settled = cluster.groups(), []
    groups.set_groups(first, frozenset({"orders"}))
    groups.set_groups(second, frozenset({"orders"}))
    await until(lambda: cluster.joined == ["orders"])
    for number in range(2):
        cluster.takers[0](number, lambda number=number: settled.append(number))
    await until(lambda: settled == [0, 1])
    assert [members for _, _, members in cluster.asked] == [[first, second], [second, first]]
    await groups.close()


async def test_what_fails_unexpectedly_takes_no_place_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that cannot be joined, and a check that cannot be written. Each took one of a few places."""
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    cluster, connection, settled = Cluster("one", "two"), member(), []
    groups, left = cluster.groups(most=1), member()

    def fail(*_: object) -> None:
        settled.append("tried")
        raise ValueError("a defect")

    groups._join = groups._ask = fail
    groups.set_groups(left, frozenset({"one"}))
    await until(lambda: len(settled) > 2)
    groups.drop_member(left)
    groups._join = cluster.join
    groups.set_groups(connection, frozenset({"two"}))
    await until(lambda: cluster.joined == ["two"])
    settled.clear()
    cluster.takers[0](1, lambda: settled.append("settled"))
    await until(lambda: settled == ["tried", "settled"])
    await groups.close()


async def test_many_groups_take_few_requests_and_one_that_is_gone_takes_none() -> None:
    cluster, first, second = Cluster("group-999"), member(), member()
    groups = cluster.groups()
    groups.set_groups(first, frozenset(f"group-{number}" for number in range(1_000)))
    groups.set_groups(second, frozenset(f"gone-{number}" for number in range(1_000)))
    groups.drop_member(second)
    # The group may be among the first that are looked up.
    await until(lambda: cluster.joined == ["group-999"] and len(cluster.looks) == 10)
    assert sum(map(len, cluster.looks)) == 1_000
    # The next heartbeat comes before the next look-up is due.
    groups.set_groups(first, frozenset(f"group-{number}" for number in range(1_000)))
    await asyncio.sleep(0.05)
    assert len(cluster.looks) == 10
    await groups.close()


async def test_a_group_is_looked_up_until_kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    cluster = Cluster("orders")
    cluster.is_away, groups = True, cluster.groups()
    groups.set_groups(member(), frozenset({"orders"}))
    await until(lambda: len(cluster.looks) > 2)
    cluster.is_away = False
    await until(lambda: cluster.joined == ["orders"])
    await groups.close()


async def test_the_groups_of_a_door_are_bounded_and_those_with_transactions_are_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MAX_CONNECTED", 10)
    cluster, first, second = Cluster(), member(), member()
    groups = cluster.groups()
    groups.set_groups(first, frozenset(f"plain-{number}" for number in range(20)))
    await groups.note_transactional("orders")
    groups.set_groups(second, frozenset({"orders", "plain-1", "more"}))
    assert len(first.groups) == 10
    assert "orders" in second.groups
    assert "more" not in second.groups
    await until(lambda: cluster.joined == ["orders"])
    groups.drop_member(first)
    groups.set_groups(second, frozenset({"orders", "more"}))
    assert second.groups == {"orders", "more"}
    await groups.close()


async def test_the_end_waits_for_no_group_that_is_being_joined() -> None:
    cluster, connection = Cluster("one", "two"), member()
    groups = cluster.groups()
    groups.set_groups(connection, frozenset({"one"}))
    await until(lambda: cluster.joined == ["one"])
    cluster.is_slow = True
    groups.set_groups(connection, frozenset({"one", "two", *(f"plain-{number}" for number in range(900))}))
    await asyncio.wait_for(groups.close(), 20)
    assert cluster.stopped == ["one"]
    assert cluster.joined == cluster.left == ["one"]


class Maker:
    """Makes check topics in a Kafka that may refuse, or not answer."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.exist = {"old"}
        self.fails: list[Exception] = []

    def __call__(self, group: str, _is_unwanted: object) -> bool:
        if self.fails:
            raise self.fails.pop(0)
        self.made.append(group)
        return group not in self.exist


async def test_the_first_half_message_of_a_group_makes_its_check_topic_once_and_others_wait_with_it() -> None:
    maker = Maker()
    topics = CheckTopics(maker, most=2)
    await asyncio.gather(*(topics.ensure_topic("orders") for _ in range(3)))
    assert maker.made == ["orders"]
    # One that exists takes no room.
    for group in ("old", "new", "one too many"):
        await topics.ensure_topic(group)
    assert maker.made == ["orders", "old", "new"]
    assert topics.knows_group("one too many")
    topics.close()


@pytest.mark.parametrize("error", [EnvironmentProblemError("missing right CREATE"), ValueError("a defect")])
async def test_a_group_that_can_get_no_checks_is_refused_as_long_as_that_is_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(topics_module, "_REFUSED_S", 0.1)
    maker, cluster = Maker(), Cluster()
    topics = CheckTopics(maker, most=1)
    groups = Groups(LookUps(cluster.look, 1), str, topics, cluster.join, cluster.ask, DoorMetrics(), 5)
    groups.set_groups(member(), frozenset({"orders"}))
    maker.fails = [error]
    assert str(error) in await groups.note_transactional("orders")
    assert not topics.knows_group("orders")
    await until(lambda: topics.ensure_topic("orders").done() and topics.knows_group("orders"))
    assert await groups.note_transactional("orders") == ""
    assert maker.made == ["orders"], "and the refusal has taken no room"
    await until(lambda: cluster.joined == ["orders"])
    await groups.close()
    topics.close()


async def test_without_an_answer_of_kafka_a_check_topic_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "_WAIT_S", 0.01)
    monkeypatch.setattr(topics_module, "_RETRY_S", 0.1)
    maker = Maker()
    topics = CheckTopics(maker, most=2)
    maker.fails = [KafkaUnreachableError("no answer")]
    assert await topics.ensure_topic("late") == ""
    assert maker.made == []
    await until(lambda: maker.made == ["late"])
    topics.close()
