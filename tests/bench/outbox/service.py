"""A service that places orders: `python -m tests.bench.outbox.service ANNOUNCE API JSON`.

ANNOUNCE is a way of tests.bench.outbox.announce, API is `threads` or `asyncio`, JSON has the fields of its Service.
Each line of input is a JSON object: place `count` orders from number `first` on, by so many `calls` at a time, `rate` a
second (0: as fast as possible). The answer has `began` and `ended`, and in the order of the numbers `calls`, the
duration of each call, and `committed`, the time after its COMMIT (all monotonic, s).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.bench.outbox.announce import ASYNCIO, THREADS, AsyncPlace, Place, Service


@dataclass
class _Work:
    """One command: a thread or task that is free takes the next number."""

    first: int
    count: int
    calls: int
    rate: float
    began: float = field(default_factory=time.monotonic)
    took: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = iter(range(self.first, self.first + self.count))

    def left(self, number: int) -> float:
        """Time until this order comes (s)."""
        return self.began + (number - self.first) / self.rate - time.monotonic() if self.rate else 0.0

    def note(self, number: int, since: float, committed: float) -> None:
        self.took[number] = time.monotonic() - since
        self.committed[number] = committed

    def answer(self) -> dict[str, Any]:
        ended, numbers = time.monotonic(), range(self.first, self.first + self.count)
        return {
            "began": self.began,
            "ended": ended,
            "calls": [self.took[number] for number in numbers],
            "committed": [self.committed[number] for number in numbers],
        }


def _in_threads(work: _Work, place: Place) -> None:
    def take() -> None:
        for number in work.numbers:
            if (left := work.left(number)) > 0:
                time.sleep(left)
            since = time.monotonic()
            work.note(number, since, place(number))

    with ThreadPoolExecutor(work.calls) as pool:
        for done in [pool.submit(take) for _ in range(work.calls)]:
            done.result()


async def _in_tasks(work: _Work, place: AsyncPlace) -> None:
    async def take() -> None:
        for number in work.numbers:
            if (left := work.left(number)) > 0:
                await asyncio.sleep(left)
            since = time.monotonic()
            work.note(number, since, await place(number))

    async with asyncio.TaskGroup() as group:
        for _ in range(work.calls):
            group.create_task(take())


def _with_threads(announce: str, service: Service) -> None:
    with THREADS[announce](service) as place:
        _answer("ready")
        for line in sys.stdin:
            work = _Work(**json.loads(line))
            _in_threads(work, place)
            _answer(work.answer())


async def _with_asyncio(announce: str, service: Service) -> None:
    async with ASYNCIO[announce](service) as place:
        _answer("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            work = _Work(**json.loads(line))
            await _in_tasks(work, place)
            _answer(work.answer())


def _answer(what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    announce, api, about = sys.argv[1:]
    service = Service(**json.loads(about))
    if api == "threads":
        _with_threads(announce, service)
    else:
        asyncio.run(_with_asyncio(announce, service))


if __name__ == "__main__":
    main()
