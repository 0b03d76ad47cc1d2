"""Lines of aiokafka: those about one question are left out, those of others are not."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from txbridge.kafka.log import without_aiokafka


async def _complain(text: str) -> None:
    logging.getLogger("aiokafka.client").error(text)


def test_lines_about_what_is_asked_within_are_left_out_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "aiokafka.client")
    with without_aiokafka(), asyncio.Runner() as runner:
        runner.run(_complain("within"))
        other = threading.Thread(target=lambda: asyncio.run(_complain("another thread")))
        other.start()
        other.join()
    asyncio.run(_complain("after"))
    assert [record.message for record in caplog.records] == ["another thread", "after"]
