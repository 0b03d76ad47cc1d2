"""The local engine of the audit as a program: processor time and memory, by number of transactions and real topics.

Also what records of a real topic cost that unpack to a lot (docs/security.md): `local --zeros 30`, and with
`--engine spark`. The memory is that of the largest process: of Spark it is the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from typing import Any

from confluent_kafka import Producer

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
    "transactions": ([100, 100_000, 1_000_000], "sizes, each a namespace of its own, with two real topics"),
    "topics": (1_000, "real topics of one more namespace; 0: none"),
    "spread": (3_000, "transactions over these"),
    "zeros": (0, "records of one more namespace that take 42 kB in Kafka, and unpack to 45 MB"),
    "fetch": (0, "bytes in one fetch of a partition (max.partition.fetch.bytes); 0: the default"),
    "engine": ("local", "of the audit"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    found = Rounds()
    with EmbeddedKafka(heap="1g") as kafka:
        sizes = {f"{size:,} transactions": (size, 2) for size in options.transactions}
        small, many = next(iter(sizes)), f"{options.spread:,} transactions in {options.topics:,} topics"
        if options.topics:
            sizes[many] = options.spread, options.topics
        if options.zeros:
            sizes[f"{options.zeros} records of zeros"] = 100, 2
        for number, (name, (size, topics)) in enumerate(sizes.items()):
            topic = _write(kafka.bootstrap_servers, f"local{number}", size, topics)
            if name.endswith("zeros"):
                _write_zeros(kafka.bootstrap_servers, topic, options.zeros)
            for _ in range(options.rounds):
                measured = _audit(kafka.bootstrap_servers, f"local{number}", size, options)
                say(f"{name}, load {os.getloadavg()[0]:.1f}: {measured}")
                found.add(name, measured)
    goals = {small: _SMALL_GOAL, many: _MANY_GOAL}
    return {
        "figures": found.report(),
        "ratios": {
            f"{name}, s of processor time": Ratio(found.median(name, _CPU), goal, at_most=True)
            for name, goal in goals.items()
            if found.has_figure(name, _CPU)
        },
    }


def _write(servers: str, namespace: str, size: int, topics: int) -> str:
    writer = Writer(servers, namespace, seed=1, topics=topics)
    for at in range(0, size, _BATCH):
        writer.more(min(_BATCH, size - at))
    return writer.topics[0]


def _write_zeros(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd", "message.max.bytes": 10**8})
    for _ in range(count):
        producer.produce(topic, bytes(45 * 10**6), partition=0)
        assert producer.flush(60) == 0


def _audit(servers: str, namespace: str, size: int, options: argparse.Namespace) -> dict[str, float]:
    """Audit in a process of its own, as a user does."""
    command = [*PROGRAM, "audit", "--bootstrap-servers", servers, "--namespace", namespace]
    command += [f"--kafka=max.partition.fetch.bytes={options.fetch}"] if options.fetch else []
    began = time.monotonic()
    process = subprocess.Popen([*command, "--engine", options.engine, "--format", "json"], stdout=subprocess.PIPE)
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
