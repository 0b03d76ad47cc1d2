"""Cancel a coroutine at each of its awaits, one run for each of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

#: When: while it waits, so that what it waits for is cancelled, too; or when that is done, and nobody knows yet.
MOMENTS = ("before", "after")


class _Counted:
    """Awaits a coroutine and cancels its task at the given await, counted from 0."""

    def __init__(self, coroutine: Any, at: int, moment: str) -> None:
        self._iterator = coroutine.__await__()
        self._at, self._moment = at, moment
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        sent: Any = None
        error: BaseException | None = None
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                waited = self._iterator.send(sent) if error is None else self._iterator.throw(error)
            except StopIteration as ended:
                return ended.value
            if self.awaits == self._at:
                if self._moment == "before" or waited is None:
                    task.cancel()
                else:
                    # Before the task's own callback: it finds its future done, and is cancelled all the same.
                    waited.add_done_callback(lambda _: task.cancel())
            self.awaits += 1
            sent = error = None
            try:
                sent = yield waited
            except BaseException as thrown:
                error = thrown


async def _run(coroutine: Any, at: int, moment: str) -> tuple[bool, Any, int]:
    counted = _Counted(coroutine, at, moment)

    async def awaited() -> Any:
        return await counted

    task = asyncio.create_task(awaited())
    try:
        return False, await task, counted.awaits
    except asyncio.CancelledError:
        return True, None, counted.awaits


async def cancelled_everywhere(
    make: Callable[[], Awaitable[Any]], *, collects: bool
) -> AsyncIterator[tuple[str, bool, Any]]:
    """Run it once for each await and moment, cancelled there; yields (what, was it cancelled, what it returned).

    `collects` garbage after each: an SQLite connection that was closed with a SELECT under way keeps its locks until
    its cursor is gone.
    """
    for moment in MOMENTS:
        at = 0
        while True:
            cancelled, returned, awaits = await _run(make(), at, moment)
            if collects:
                await asyncio.sleep(0.01)
                gc.collect()
            yield f"{moment} await {at}", cancelled, returned
            if awaits <= at:
                # It has ended before.
                break
            at += 1
        assert at > 0, "nothing was cancelled"
