"""The door's senders to Kafka: decisions that share records, and the end while Kafka is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError
from txbridge_rocketmq import outlet as outlet_module
from txbridge_rocketmq.outlet import DecisionOutlet, Outlet

from tests.support.client_fakes import FakeRecord
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.core.decision_record import Decision, DecisionEntry, Source
from txbridge.kafka.errors import ALL_BROKERS_DOWN, FAIL, PURGE_QUEUE, QUEUE_FULL

_NOWHERE = "127.0.0.1:1"


class Kafka:
    """An outlet that counts its records. Each is acknowledged in the next turn of the event loop."""

    records = 0

    def send_record(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
        self.records += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(answer.set_result, (None, 0, self.records))
        return answer


async def test_decisions_share_a_record_unless_a_client_waits_or_many_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So long that no busy machine reaches the end of it.
    monkeypatch.setattr(outlet_module, "DEFAULT_COMMIT_INTERVAL_S", 3_600)
    kafka = Kafka()
    decisions = DecisionOutlet(kafka, "END", "door")  # type: ignore[arg-type]

    def submit(group: str = "one", *, is_awaited: bool = False) -> asyncio.Future[str | None]:
        entry = DecisionEntry(0, "0" * 32, Decision.COMMIT)
        return decisions.submit_decision(group, 0, Source.CLIENT, entry, is_awaited=is_awaited)

    async with asyncio.timeout(60):
        # After a quiet time nothing is waited for.
        await submit()
        assert kafka.records == 1
        answers = [submit(), submit("other"), submit()]
        await asyncio.sleep(0.1)
        assert kafka.records == 1
        # A client that waits takes those of its group along: three decisions are in one record.
        await submit(is_awaited=True)
        assert kafka.records == 2
        assert [answer.done() for answer in answers] == [True, False, True]
        assert await asyncio.gather(*(submit() for _ in range(200))) == [None] * 200
        assert kafka.records == 3
        await submit("other", is_awaited=True)
        assert await asyncio.gather(*answers) == [None] * 3
        assert kafka.records == 4
    assert decisions.unsettled == 0


async def test_at_the_end_all_decisions_are_given_up_also_those_that_wait_for_another() -> None:
    settings = {"bootstrap.servers": _NOWHERE, "queue.buffering.max.messages": 1}
    outlet = Outlet(settings, KafkaConnection(_NOWHERE), "ENDs")
    await asyncio.to_thread(outlet.start, asyncio.get_running_loop(), "END")
    decisions = DecisionOutlet(outlet, "END", "door")
    answers = []
    for number in range(3):
        entry = DecisionEntry(number, "0" * 32, Decision.COMMIT)
        answers.append(decisions.submit_decision(f"group {number % 2}", 0, Source.CLIENT, entry, is_awaited=True))
        # The first one leaves. The second one waits for room in the queue, and the third one for the first.
        await asyncio.sleep(0.01)
    await asyncio.to_thread(outlet.close)
    async with asyncio.timeout(120):
        reasons = await asyncio.gather(*answers)
    assert all("the producer was closed meanwhile" in str(reason) for reason in reasons)
    assert decisions.unsettled == 0


@pytest.mark.parametrize(("cluster", "code"), [("first", None), ("second", FAIL)])
async def test_an_acknowledgement_after_an_outage_counts_once_the_cluster_is_recognised(
    cluster: str, code: int | None
) -> None:
    link = KafkaConnection(_NOWHERE)
    link.cluster_id = "first"
    outlet = Outlet({"bootstrap.servers": _NOWHERE}, link, "messages")
    outlet._loop = asyncio.get_running_loop()
    link.on_error(KafkaError(ALL_BROKERS_DOWN))
    answer = outlet.send_record("HALF", b"value", None, [], partition=0)
    outlet._note_report(outlet._lanes["HALF", 0], answer, None, FakeRecord(0, 5))  # type: ignore[arg-type]
    outlet._hand_over()
    await asyncio.sleep(0.01)
    assert not answer.done()
    link.note_cluster(cluster, link.errors)
    outlet._hand_over()
    error, *place = await answer
    assert (error and error.code(), place) == (code, [0, 5] if code is None else [-1, -1])
    await asyncio.to_thread(outlet.close)


async def test_no_record_overtakes_those_that_are_held_back() -> None:
    outlet = Outlet({"bootstrap.servers": _NOWHERE, "linger.ms": 1}, KafkaConnection(_NOWHERE), "messages")
    outlet._loop, sent = asyncio.get_running_loop(), []
    for wire in (outlet._quick, outlet._shared):
        wire.produce = lambda *record: sent.append((record[1], record[4]))  # type: ignore[method-assign]
    for number in range(9):
        outlet.send_record("HALF", b"%d" % number, None, [], partition=0)
        if number >= 5:
            # One of the four in flight is acknowledged, while the fifth is held back.
            sent[number - 5][1](None, FakeRecord(0, number))
            outlet._set_answers()
    assert [value for value, _ in sent] == [b"%d" % number for number in range(9)]
    await asyncio.to_thread(outlet.close)


@pytest.mark.parametrize("linger_ms", [0, 60_000])
async def test_what_is_held_back_is_refused_soon_if_the_queue_is_full_and_given_up_at_the_end(linger_ms: int) -> None:
    settings = {"bootstrap.servers": _NOWHERE, "queue.buffering.max.messages": 7, "linger.ms": linger_ms}
    outlet = Outlet(settings, KafkaConnection(_NOWHERE), "messages")
    await asyncio.to_thread(outlet.start, asyncio.get_running_loop(), "HALF")
    answers = [outlet.send_record("HALF", b"value", None, [], partition=0) for _ in range(10)]
    # The queue takes the first ones, and two or three of those that are held back behind them.
    assert not answers[-1].done()
    async with asyncio.timeout(60):
        refused = await asyncio.gather(*answers[7:])
    assert [error and error.code() for error, _, _ in refused] == [QUEUE_FULL] * 3
    assert not any(answer.done() for answer in answers[:7])

    answers[7:] = [outlet.send_record("HALF", b"value", None, [], partition=0) for _ in range(3)]
    await asyncio.to_thread(outlet.close)
    async with asyncio.timeout(60):
        at_the_end = await asyncio.gather(*answers)
    assert [error and error.code() for error, _, _ in at_the_end[:7]] == [PURGE_QUEUE] * 7
    # On a busy machine the queue may have refused them before the end.
    assert all(error and error.code() in {PURGE_QUEUE, QUEUE_FULL} for error, _, _ in at_the_end[7:])
