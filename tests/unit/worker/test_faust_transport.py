"""Faust's consumer: the number of its requests, and what it and the app tell the owners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from txbridge.config.worker import WorkerSettings
from txbridge.worker.app import create_app
from txbridge.worker.faust import transport
from txbridge.worker.faust.transport import METADATA_PAUSE_S, TolerantConsumer, pace_fetches, pace_metadata


def test_between_two_questions_there_is_a_pause_also_after_one_that_failed() -> None:
    asked: list[float] = []

    async def ask(*arguments: Any) -> Any:
        asked.append(time.monotonic())
        if len(asked) == 2:
            raise OSError("nobody answers")
        return arguments

    async def ask_thrice() -> Any:
        client = SimpleNamespace(_metadata_update=ask)
        pace_metadata(client)
        await client._metadata_update("cluster", "topics")
        with contextlib.suppress(OSError):
            await client._metadata_update("cluster", "topics")
        return await client._metadata_update("cluster", "topics")

    assert asyncio.run(ask_thrice()) == ("cluster", "topics")
    first, second, third = asked
    assert second - first >= METADATA_PAUSE_S
    assert third - second >= METADATA_PAUSE_S


def test_a_fetch_rests_after_an_answer_with_records_of_the_same_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rests = [1_000.0], list[float]()
    fetch = FetchRequest(1_500, 1, 1_000, 1, [])

    async def rest(seconds: float) -> None:
        rests.append(round(seconds, 3))
        now[0] += seconds

    async def send(*_arguments: Any, **_options: Any) -> None:
        now[0] += 0.01

    async def send_all() -> None:
        client = SimpleNamespace(send=send)
        pace_fetches(client, 0.05)
        for node in (1, 2, 1):
            await client.send(node, fetch)
        await client.send(1, MetadataRequest([]), group="coordination")
        # The broker has waited for records as long as it may: a quiet time, after which a record is not delayed.
        monkeypatch.setattr(transport, "_FETCH_WAIT_S", 0.005)
        for _ in range(2):
            await client.send(1, fetch)

    monkeypatch.setattr(transport.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(transport.asyncio, "sleep", rest)
    asyncio.run(send_all())
    assert rests == [0.0, 0.0, 0.04, 0.04, 0.0]


def test_while_the_group_rebalances_faust_reads_nothing_next() -> None:
    partition, offsets = TopicPartition("END", 0), list[int | None]()

    async def rebalance() -> None:
        state = SubscriptionState()
        reader: Any = SimpleNamespace(_thread=SimpleNamespace(_consumer=SimpleNamespace(_subscription=state)))

        def note_next() -> None:
            offsets.append(TolerantConsumer.next_offset(reader, partition))

        note_next()
        state.subscribe({"END"})
        note_next()
        for offset in (5, 7):
            state.assign_from_subscribed({partition})
            note_next()
            state.seek(partition, offset)
            note_next()
            state.begin_reassignment()
            note_next()

    asyncio.run(rebalance())
    assert offsets == [None, None, None, 5, None, None, 7, None]


def test_when_a_rebalance_begins_the_owners_read_end_themselves() -> None:
    missed: list[str] = []
    app = create_app(WorkerSettings(bootstrap_servers="127.0.0.1:1"))
    asyncio.run(app.on_partitions_revoked.send(set()))
    app.worker = SimpleNamespace(miss_events=lambda: missed.append("owners"))  # type: ignore[assignment]
    asyncio.run(app.on_partitions_revoked.send(set()))
    assert missed == ["owners"]
