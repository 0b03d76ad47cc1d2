"""Look-ups of topics that clients name: in few requests, in turns, and remembered within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from txbridge_rocketmq import topics as module
from txbridge_rocketmq.door_options import DoorMetrics
from txbridge_rocketmq.requests import SendRequest
from txbridge_rocketmq.sends import Sends
from txbridge_rocketmq.topics import NoAnswerError, Topics

from txbridge.client.message import MessageLimits
from txbridge.core.names import Names


class Kafka:
    """Answers each request once the test lets it."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.requests: list[list[str]] = []
        self.answers = threading.Event()
        self.answers.set()

    def look(self, names: Sequence[str]) -> dict[str, int | NoAnswerError]:
        self.requests.append(list(names))
        assert self.answers.wait(120)
        return {name: self.partitions.get(name, 0) for name in names}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type:
    class Clock:
        now = 1_000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.mark.parametrize("asks", [[], ["orders"]], ids=["nobody-else", "queued-first"])
async def test_a_client_does_not_wait_for_the_many_names_of_another(asks: list[str]) -> None:
    kafka = Kafka(orders=8)
    kafka.answers.clear()
    topics = Topics(kafka.look)
    names = [*(f"missing-{number}" for number in range(5_000)), *asks]
    many = [asyncio.ensure_future(topics.count_partitions(name, "many")) for name in names]
    await asyncio.sleep(0)
    one = asyncio.ensure_future(topics.count_partitions("orders", "one"))
    await asyncio.sleep(0)
    kafka.answers.set()
    assert await one == 8
    assert sum(answer.done() for answer in many) < 1_000
    assert await asyncio.gather(*many) == [0] * 5_000 + [8] * len(asks)
    assert sum(request.count("orders") for request in kafka.requests) == 1
    assert max(map(len, kafka.requests)) == 100
    assert len(kafka.requests) < 60
    topics.close()


async def test_messages_keep_their_order_while_the_number_of_partitions_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KNOWN_S", 0.01)
    sent: list[int] = []

    class Records:
        def send_record(self, _topic: str, value: bytes, *_: object, **__: object) -> asyncio.Future[Any]:
            sent.append(int(value))
            answer = asyncio.get_running_loop().create_future()
            answer.set_result((None, 0, len(sent)))
            return answer

    kafka = Kafka(orders=8)
    topics = Topics(kafka.look)
    setting = SimpleNamespace(names=Names(), obstacle=lambda: "", limits=MessageLimits(1_000, 3_600))
    sends = Sends(setting, Records(), None, topics, DoorMetrics(), print)  # type: ignore[arg-type]
    tasks = []
    while len(kafka.requests) < 30:
        for _ in range(3):
            request = SendRequest("group", "orders", 0, 0, 0, 0, {}, is_batch=False)
            tasks.append(asyncio.ensure_future(sends.send_message(request, b"%d" % len(tasks), "peer")))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert sent == list(range(len(tasks)))
    topics.close()


async def test_answers_are_remembered_and_missing_topics_drive_no_other_out(
    clock: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_TOPICS", 100)
    kafka = Kafka(orders=8)
    topics = Topics(kafka.look)
    assert await topics.count_partitions("orders", "one") == 8
    for number in range(200):
        assert await topics.count_partitions(f"missing-{number}", "many") == 0
    assert topics.cached_partitions("missing-0") is None
    assert topics.cached_partitions("missing-199") == 0
    clock.now += 1.1
    assert topics.cached_partitions("missing-199") is None
    assert topics.cached_partitions("orders") == 8
    clock.now += 9
    assert topics.cached_partitions("orders") is None
    topics.close()


async def test_each_client_learns_that_kafka_does_not_answer_and_the_next_one_asks_again() -> None:
    kafka = Kafka(orders=8)

    def look(names: Sequence[str]) -> dict[str, int | NoAnswerError]:
        if not kafka.requests:
            kafka.look(names)
            raise NoAnswerError("timed out")
        return {**kafka.look(names), "denied": NoAnswerError("not authorized")}

    topics = Topics(look)
    asked = [topics.count_partitions("orders", peer) for peer in ("one", "two")]
    assert [str(found) for found in await asyncio.gather(*asked, return_exceptions=True)] == ["timed out"] * 2
    assert await topics.count_partitions("orders", "one") == 8
    with pytest.raises(NoAnswerError, match="not authorized"):
        await topics.count_partitions("denied", "one")
    assert kafka.requests[0] == ["orders"]
    topics.close()
