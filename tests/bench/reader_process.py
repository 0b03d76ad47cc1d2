"""The handle of a reader process (`tests.bench.reader`): the records that became visible, with their times."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple, Self

from tests.bench.feed import PATIENCE_S
from tests.support.line_process import LineProcess


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


class BenchProcess(LineProcess):
    """A program of this folder in a process of its own: JSON in, JSON out."""

    def __init__(self, program: str, *arguments: str) -> None:
        super().__init__([sys.executable, "-m", f"tests.bench.{program}", *arguments])

    def answer(self) -> Any:
        line = self.next_line(PATIENCE_S)
        assert line, "the process has ended; what it said stands above"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error it may be waiting for records that will never come.
        self.end(PATIENCE_S if kind is None else 0)
        assert kind is not None or self.code == 0, f"the process ended with exit code {self.code}"


class ReaderProcess(BenchProcess):
    """Reads topics from their beginning in a process of its own, because it would otherwise share the client's GIL."""

    def __init__(self, bootstrap_servers: str, *topics: str) -> None:
        super().__init__("reader", bootstrap_servers, *topics)
        assert self.answer() == "ready"

    def expect(self, count: int) -> None:
        """Count up to this many records from now on. `last_seen` waits for them."""
        self._expect(count=count)

    def last_seen(self) -> float:
        """Time when the last of them was seen, on the monotonic clock (s)."""
        return float(self.answer()["last"])

    def expect_numbers(self, first: int, count: int, settle: float = 0.0) -> None:
        """Note from now on when each key from `first` on is seen. `seen` waits for them.

        Copies are counted until `settle` seconds after all have come.
        """
        self._expect(first=first, count=count, settle=settle)

    def seen(self) -> Seen:
        return Seen(**self.answer())

    def expect_times(self, count: int) -> None:
        """Note from now on the time that each value names, up to this many, or to one that names 0."""
        self._expect(until=count)

    def named_times(self) -> NamedTimes:
        return NamedTimes(**self.answer())

    def _expect(self, **wanted: Any) -> None:
        assert json.loads(self.ask(json.dumps(wanted), PATIENCE_S)) == "counting"
