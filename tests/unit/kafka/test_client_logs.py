"""Log lines of aiokafka: those about one request are left out, others are not."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
from aiokafka.errors import KafkaError

from txbridge.embedded.ports import free_port
from txbridge.kafka.aiokafka_client import aiokafka_client
from txbridge.kafka.log import without_aiokafka


async def _complain(port: int) -> None:
    """aiokafka's own error line about an absent broker."""
    client = aiokafka_client({"bootstrap.servers": f"127.0.0.1:{port}"}, "test", 1.0)
    with suppress(KafkaError):
        await client.bootstrap()
    await client.close()


def test_lines_about_what_is_asked_within_are_left_out_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    within, beside, after = free_port(), free_port(), free_port()
    with without_aiokafka(), asyncio.Runner() as runner:
        runner.run(_complain(within))
        other = threading.Thread(target=lambda: asyncio.run(_complain(beside)))
        other.start()
        other.join()
    asyncio.run(_complain(after))
    named = [port for port in (within, beside, after) if f":{port}" in caplog.text]
    assert named == [beside, after]
