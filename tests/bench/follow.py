"""Time in which `txbridge audit --follow` raises a violation: from the record until it is in the violations topic.

The follower is a program of its own, so that its processor time and its memory are known. With `--rate`, legal
transactions are written meanwhile, by this process. The rate beside it is the written one, which is lower on a machine
that is too small. With `--minutes`, the measurement lasts that long.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from txbridge_audit.audit import INTERVAL

from tests.bench.beside import beside
from tests.bench.feed import memory, say
from tests.bench.measure import Ratio, once, summary
from tests.corruption.writer import Writer
from tests.support.command_line import PROGRAM
from tests.support.harness import cpu_seconds, quiet
from txbridge.embedded import EmbeddedKafka

_NAMESPACE, _ALARMS = "follow", "alarms"
#: The goals: for the median (s), of one processor, and for the peak of the memory (MiB).
_GOAL_S, _GOAL_CORES, _GOAL_MIB = 1, 0.5, 400
#: The first steps of a process are slower than all others, and an audit that follows for days has few of them.
_UNMEASURED = 3
#: Time between two violations (s). Violations come at any time of a step and of the pause after it.
_BETWEEN = 3.7
#: Longer than any violation takes, even on the slowest machine.
_GIVE_UP = 300.0
#: Transactions that exist at the beginning. They name the real topics.
_BEFORE = 400
#: Batches of transactions that are written in a second.
_BATCHES = 2


OPTIONS = {
    "violations": (9, "that are measured"),
    "rate": (0, "legal transactions a second beside them"),
    "minutes": (0.0, "go on for at least so long; 0: until all violations are raised"),
    "interval": (float(INTERVAL), "of the follower, seconds"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        writer = Writer(servers, _NAMESPACE, seed=1, batch=200)
        writer.more(_BEFORE)
        taken: list[float] = []
        written = [0]
        with (
            follower(servers, _NAMESPACE, options.interval) as process,
            beside(partial(_write, writer, options.rate, written)),
        ):
            alarms, pid = _alarms(servers), process.pid
            began, spent = time.monotonic(), 0.0
            while len(taken) < options.violations + _UNMEASURED or time.monotonic() - began < options.minutes * 60:
                time.sleep(_BETWEEN)
                taken.append(_measure_one(servers, writer.topics[0], len(taken), alarms))
                say(
                    f"violation {len(taken)}: {taken[-1]:.1f} s, {memory(pid) / 2**20:,.0f} MiB, {written[0]:,} written"
                )
                if len(taken) == _UNMEASURED:
                    began, spent, written[0] = time.monotonic(), cpu_seconds(pid), 0
            seconds = time.monotonic() - began
            cores = (cpu_seconds(pid) - spent) / seconds
            peak = memory(pid, "VmHWM") / 2**20
            alarms.close()
    measured = taken[_UNMEASURED:]
    figures = {
        "s until raised": summary(measured),
        "s until raised, p90": summary([sorted(measured)[int(len(measured) * 0.9)]]),
        **once({"transactions a second beside it": written[0] / seconds, "processors": cores, "MiB, peak": peak}),
    }
    return {
        "seconds_until_raised": taken,
        "figures": {"follower": figures},
        "ratios": {
            "violation raised, median (s)": Ratio(median(measured), _GOAL_S, at_most=True, rounds=measured),
            "processors of the follower": Ratio(cores, _GOAL_CORES, at_most=True),
            "memory of the follower, peak (MiB)": Ratio(peak, _GOAL_MIB, at_most=True),
        },
    }


@contextmanager
def follower(servers: str, namespace: str, interval: float = INTERVAL) -> Iterator[subprocess.Popen[bytes]]:
    """A follower that has made its first step."""
    admin = AdminClient(quiet(servers))
    admin.create_topics([NewTopic(_ALARMS, 1, 1)])[_ALARMS].result()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        options = ["--bootstrap-servers", servers, "--namespace", namespace, "--violations-topic", _ALARMS]
        options += ["--ledger", str(Path(folder, "ledger")), "--report", str(report), "--interval", str(interval)]
        process = subprocess.Popen([*PROGRAM, "audit", *options, "--follow"], stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + _GIVE_UP
            while not report.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the follower made no step; its error stands above")
                time.sleep(0.1)
            yield process
        finally:
            process.terminate()
            process.wait(_GIVE_UP)


def _write(writer: Writer, rate: int, written: list[int], ended: threading.Event) -> None:
    """Write transactions, and count them."""
    due = time.monotonic()
    while rate and not ended.is_set():
        written[0] += writer.more(rate // _BATCHES)
        due += 1 / _BATCHES
        ended.wait(max(0.0, due - time.monotonic()))


def _measure_one(servers: str, topic: str, number: int, alarms: Consumer) -> float:
    """Seconds from a visible record without a half message until its alarm can be read."""
    producer = Producer(quiet(servers))
    where = 10**12 + number
    producer.produce(topic, b"value", headers=[("TXB_HALF", b"0:%d" % where), ("UNIQ_KEY", b"%032d" % number)])
    if producer.flush(_GIVE_UP):
        raise RuntimeError("Kafka did not take the record")
    since = time.monotonic()
    while time.monotonic() - since < _GIVE_UP:
        message = alarms.poll(0.05)
        if message is not None and message.error() is None and b"%d" % where in (message.value() or b""):
            return time.monotonic() - since
    raise RuntimeError(f"no alarm after {_GIVE_UP} s")


def _alarms(servers: str) -> Consumer:
    consumer = Consumer({**quiet(servers), "group.id": "bench", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(_ALARMS, 0, 0)])
    return consumer
