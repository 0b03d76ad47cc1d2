"""The whole path by partitions and workers, answers, size, and API of the client (docs/growth.md)."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from tests.bench.end_to_end import MIXES
from tests.bench.measure import Found, by_turns
from tests.bench.stand import Stand
from txbridge.embedded import EmbeddedKafka

_PARTITIONS = (1, 4)
_WORKERS = (1, 2)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=20_000, help="per measurement (default 20,000)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], help="bytes of values (default 100 1000)")
    parser.add_argument("--mixes", choices=MIXES, nargs="+", default=list(MIXES), help="default all")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    measures: dict[str, Callable[[], Found]] = {}
    with EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka, contextlib.ExitStack() as stack:
        # All stands run at once, so that each round measures all of them. The others are idle meanwhile, and an idle
        # worker costs next to nothing (tests/integration/test_worker_cost.py).
        for partitions, workers in product(_PARTITIONS, _WORKERS):
            stand = stack.enter_context(Stand(kafka, partitions, workers))
            apis = {"pipelined": stand.clients.pipelined, "asyncio": stand.clients.asyncio}
            for (api, send), mix, size in product(apis.items(), options.mixes, options.sizes):
                name = f"{_number(partitions, 'partition')}, {_number(workers, 'worker')}, {api}, {mix}, {size:,} B"
                measures[name] = partial(stand.measure, send, options.transactions, size, MIXES[mix])
        return {"figures": by_turns(options.rounds, measures).report(), "ratios": {}}


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
