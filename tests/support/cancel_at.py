"""Cancel a coroutine at each of its awaits, one run for each of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

#: Moments of the cancellation. Before: the awaited future is cancelled, too. After: the future is done, and the task
#: has not resumed yet.
MOMENTS = ("before", "after")


class CancelledAt:
    """Awaits a coroutine and cancels its task at so many awaits from the given one on, counted from 0."""

    def __init__(self, coroutine: Any, at: int, moment: str, times: int = 1) -> None:
        self._iterator = coroutine.__await__()
        self._cancelled, self._moment = range(at, at + times), moment
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
            if self.awaits in self._cancelled:
                if self._moment == "before" or waited is None:
                    task.cancel()
                else:
                    # This callback comes before the task's own one. The task finds its future done and is cancelled all
                    # the same.
                    waited.add_done_callback(lambda _: task.cancel())
            self.awaits += 1
            sent = error = None
            try:
                sent = yield waited
            except BaseException as thrown:
                error = thrown


async def _run(coroutine: Any, at: int, moment: str, times: int) -> tuple[bool, Any, int]:
    counted = CancelledAt(coroutine, at, moment, times)

    async def awaited() -> Any:
        return await counted

    task = asyncio.create_task(awaited())
    try:
        return False, await task, counted.awaits
    except asyncio.CancelledError:
        return True, None, counted.awaits


async def cancelled_everywhere(
    make: Callable[[], Awaitable[Any]], *, collects: bool, times: int = 1
) -> AsyncIterator[tuple[str, bool, Any]]:
    """Run a coroutine once for each await and moment, and cancel it there, and at so many `times` in a row.

    Yields the place, whether the coroutine was cancelled, and its result. With `collects`, garbage is collected after
    each run: an SQLite connection that was closed during a SELECT keeps its locks until its cursor is deleted.
    """
    for moment in MOMENTS:
        at = 0
        while True:
            cancelled, returned, awaits = await _run(make(), at, moment, times)
            if collects:
                await asyncio.sleep(0.01)
                gc.collect()
            yield f"{moment} await {at}", cancelled, returned
            if awaits <= at:
                # The coroutine has ended before this await.
                break
            at += 1
        assert at > 0, "nothing was cancelled"
