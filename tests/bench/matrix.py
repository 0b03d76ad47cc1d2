"""The whole path by partitions and workers, answers, size, and API of the client (docs/growth.md)."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from tests.bench.load import Mix
from tests.bench.measure import ROUNDS, Found, by_turns
from tests.bench.stand import standing
from txbridge.embedded import EmbeddedKafka

_PARTITIONS = (1, 4)
_WORKERS = (1, 2)
#: Shares of answers: commit, rollback, unknown.
_MIXES = {"100/0/0": Mix(), "90/5/5": Mix(rollback=5, unknown=5)}

OPTIONS = {
    "transactions": (20_000, "per measurement"),
    "sizes": ([100, 1_000], "bytes of values"),
    "mixes": ([*_MIXES], "shares of answers"),
    "rounds": ROUNDS,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    measures: dict[str, Callable[[], Found]] = {}
    with EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka, contextlib.ExitStack() as stack:
        # All stands run at once, so that each round measures all of them. The others are idle meanwhile, and an idle
        # worker costs next to nothing (tests/integration/test_worker_cost.py).
        for partitions, workers in product(_PARTITIONS, _WORKERS):
            stand = stack.enter_context(standing(kafka, partitions, workers))
            apis = {"pipelined": stand.clients.pipelined, "asyncio": stand.clients.asyncio}
            for (api, send), mix, size in product(apis.items(), options.mixes, options.sizes):
                name = f"{_number(partitions, 'partition')}, {_number(workers, 'worker')}, {api}, {mix}, {size:,} B"
                measures[name] = partial(stand.measure, send, options.transactions, size, _MIXES[mix])
        return {"figures": by_turns(options.rounds, measures).report()}


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
