"""The local engine of the audit as a program: processor time and memory, by number of transactions and real topics."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from typing import Any

from tests.bench.feed import say
from tests.bench.measure import Ratio, Rounds
from tests.corruption.writer import Writer
from tests.support.command_line import PROGRAM
from txbridge.embedded import EmbeddedKafka

#: Processor seconds that an audit may take, the start of the interpreter included: of the smallest size, and of many
#: real topics.
_SMALL_GOAL, _MANY_GOAL = 2, 5
_CPU, _WALL, _MEMORY = "s of processor time", "s", "MiB, peak"
#: Transactions that are written at once.
_BATCH = 5_000

OPTIONS = {
    "rounds": (3, "audits of each"),
    "transactions": ([100, 100_000, 300_000], "sizes, each a namespace of its own, with two real topics"),
    "topics": (1_000, "real topics of one more namespace; 0: none"),
    "spread": (3_000, "transactions over these"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    found = Rounds()
    with EmbeddedKafka(heap="1g") as kafka:
        sizes = {f"{size:,} transactions": (size, 2) for size in options.transactions}
        small, many = next(iter(sizes)), f"{options.spread:,} transactions in {options.topics:,} topics"
        if options.topics:
            sizes[many] = options.spread, options.topics
        for number, (name, (size, topics)) in enumerate(sizes.items()):
            _write(kafka.bootstrap_servers, f"local{number}", size, topics)
            for _ in range(options.rounds):
                measured = _audit(kafka.bootstrap_servers, f"local{number}", size)
                say(f"{name}, load {os.getloadavg()[0]:.1f}: {measured}")
                found.add(name, measured)
    goals = {small: _SMALL_GOAL, many: _MANY_GOAL}
    return {
        "figures": found.report(),
        "ratios": {
            f"{name}, s of processor time": Ratio(found.median(name, _CPU), goal, at_most=True)
            for name, goal in goals.items()
            if name in found
        },
    }


def _write(servers: str, namespace: str, size: int, topics: int) -> None:
    writer = Writer(servers, namespace, seed=1, topics=topics)
    for at in range(0, size, _BATCH):
        writer.more(min(_BATCH, size - at))


def _audit(servers: str, namespace: str, size: int) -> dict[str, float]:
    """Audit in a process of its own, as a user does."""
    command = [*PROGRAM, "audit", "--bootstrap-servers", servers, "--namespace", namespace]
    began = time.monotonic()
    process = subprocess.Popen([*command, "--engine", "local", "--format", "json"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as out:
        report = json.load(out)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or report["transactions"] != size:
        raise RuntimeError(f"exit code {process.returncode}, {report['transactions']} transactions of {size}")
    return {
        _CPU: round(used.ru_utime + used.ru_stime, 2),
        _WALL: round(time.monotonic() - began, 2),
        _MEMORY: used.ru_maxrss // 1024,
    }
