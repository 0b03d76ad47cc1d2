"""The handle of several client processes (`tests.bench.client_program`) that send at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from tests.bench.feed import PATIENCE_S
from tests.bench.measure import PER_SECOND, Found
from tests.bench.stand import Stand, cpu_us_each


class ClientProcesses:
    """Several client processes with one interpreter each, which together can exceed the rate of a single one."""

    def __init__(self, stand: Stand, number: int) -> None:
        self._stand = stand
        command = [sys.executable, "-m", "tests.bench.client_program"]
        arguments = [stand.bridge.bootstrap_servers, stand.bridge.namespace, stand.real_topic]
        self._processes = [
            subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(number)
        ]

    def measure(self, count: int, size: int) -> Found:
        """Measure as Stand.measure does, from the first prepare of any process. Each sends an equal part of `count`."""
        each = count // len(self._processes)
        count = each * len(self._processes)
        self._stand.reader.expect(count)
        before = self._stand.cpu_seconds()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"count": each, "size": size}) + "\n")
            process.stdin.flush()
        done = [self._answer(process) for process in self._processes]
        seconds = self._stand.reader.last_seen() - min(one["since"] for one in done)
        after = self._stand.cpu_seconds()
        # The client's processor time is that of the other processes, not of this one.
        after["client"] = before["client"] + sum(one["cpu"] for one in done)
        return {PER_SECOND: count / seconds, **cpu_us_each(before, after, count)}

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a client has ended; what it said stands above"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            if error is not None:
                process.kill()
            process.wait(PATIENCE_S)
            process.stdout.close()
