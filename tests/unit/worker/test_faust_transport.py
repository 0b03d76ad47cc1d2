"""The number of metadata requests of Faust's consumer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

from txbridge.worker.faust.transport import METADATA_PAUSE_S, pace_metadata


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
