"""The handle of a reader process (`tests.bench.reader`): the records that became visible, with their times."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.bench.feed import PATIENCE_S


class Seen(NamedTuple):
    """Times are those of the monotonic clock, which all processes of a machine share (s)."""

    #: Times by number, from the first expected one on.
    times: list[float]
    #: Number of records that had been seen before.
    copies: int


class NamedTimes(NamedTuple):
    """Of each record, in the order of arrival: the time that its value names, and the time when it was seen (ms)."""

    named: list[float]
    seen: list[float]

    @property
    def late(self) -> list[float]:
        """Delay of each record when it was seen (s)."""
        return [(seen - named) / 1e3 for named, seen in zip(self.named, self.seen, strict=True)]


class ReaderProcess:
    """Reads topics from their beginning in a process of its own, because it would otherwise share the client's GIL."""

    def __init__(self, bootstrap_servers: str, *topics: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.reader", bootstrap_servers, *topics],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    @property
    def pid(self) -> int:
        return self._process.pid

    def expect(self, count: int) -> None:
        """Count up to this many records from now on. `last_seen` waits for them."""
        self._ask(count=count)

    def last_seen(self) -> float:
        """Time when the last of them was seen, on the monotonic clock (s)."""
        return float(json.loads(self._answer())["last"])

    def expect_numbers(self, first: int, count: int, settle: float = 0.0) -> None:
        """Note from now on when each key from `first` on is seen. `seen` waits for them.

        Copies are counted until `settle` seconds after all have come.
        """
        self._ask(first=first, count=count, settle=settle)

    def seen(self) -> Seen:
        answer = json.loads(self._answer())
        return Seen(answer["times"], answer["copies"])

    def expect_times(self, count: int) -> None:
        """Note from now on the time that each value names, up to this many, or to one that names 0."""
        self._ask(until=count)

    def named_times(self) -> NamedTimes:
        answer = json.loads(self._answer())
        return NamedTimes(answer["named"], answer["seen"])

    def _ask(self, **wanted: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        assert self._answer() == "counting"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the reader has ended; what it said stands above"
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if error is not None:
            # It may be waiting for records that will never come.
            self._process.kill()
        code = self._process.wait(PATIENCE_S)
        assert error is not None or code == 0, f"the reader ended with exit code {code}"
