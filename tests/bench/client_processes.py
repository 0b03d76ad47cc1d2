"""Several client processes (`tests.bench.client_program`) that send at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.bench.measure import PER_SECOND, Found
from tests.bench.reader_process import BenchProcess
from tests.bench.stand import Stand, cpu_us_each


@contextmanager
def client_processes(stand: Stand, number: int) -> Iterator[Callable[[int, int], Found]]:
    """Start them. Together they can exceed the rate of a single interpreter.

    Yields a function that measures `count` transactions with values of `size` bytes as Stand.measure does, from the
    first prepare of any process. Each sends an equal part.
    """
    arguments = (stand.bridge.bootstrap_servers, stand.bridge.namespace, stand.real_topic)
    with ExitStack() as stack:
        processes = [stack.enter_context(BenchProcess("client_program", *arguments)) for _ in range(number)]

        def measure(count: int, size: int) -> Found:
            each = count // number
            count = each * number
            stand.reader.expect(count)
            before = stand.cpu_seconds()
            for process in processes:
                process.write(json.dumps({"count": each, "size": size}))
            done = [process.answer() for process in processes]
            seconds = stand.reader.last_seen() - min(one["since"] for one in done)
            after = stand.cpu_seconds()
            # The client's processor time is that of the other processes, not of this one.
            after["client"] = before["client"] + sum(one["cpu"] for one in done)
            return {PER_SECOND: count / seconds, **cpu_us_each(before, after, count)}

        yield measure
