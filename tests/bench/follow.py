"""Time in which `txbridge audit --follow` raises a violation: from the record until it is in the violations topic.

With `--rate`, legal transactions are written meanwhile. With `--minutes`, the measurement lasts that long. The report
has the memory of Spark and of this process, which follows and writes the transactions, for each violation. It also has
both at the beginning and at the end, so that growth shows. `transactions_per_second` is the written rate, which is
lower on a machine that is too small.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext
from txbridge_audit.incremental.follow import INTERVAL, follow
from txbridge_audit.incremental.steps import AuditStep

from tests.bench.measure import Ratio, summary
from tests.corruption.writer import Writer
from tests.support.harness import quiet
from txbridge.embedded import EmbeddedKafka

_NAMESPACE, _ALARMS = "follow", "alarms"
#: The goal for the median (s).
_GOAL_S = 5
#: The first steps of a JVM are slower than all others, and an audit that follows for days has few of them.
_UNMEASURED = 3
#: Time between two violations (s). Violations come at any time of a step and of the pause after it.
_BETWEEN = 3.7
#: Longer than any violation takes, even on the slowest machine.
_GIVE_UP = 300.0
#: Transactions that exist at the beginning. They name the real topics.
_BEFORE = 400
#: Batches of transactions that are written in a second.
_BATCHES = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--violations", type=int, default=9, help="that are measured (default 9)")
    parser.add_argument("--rate", type=int, default=0, help="legal transactions a second beside them (default 0)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="go on for at least so long (default: all violations)"
    )
    parser.add_argument(
        "--interval", type=float, default=INTERVAL, help=f"of the follower, seconds (default {INTERVAL})"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        admin = AdminClient(quiet(servers))
        admin.create_topics([NewTopic(_ALARMS, 1, 1)])[_ALARMS].result()
        writer = Writer(servers, _NAMESPACE, seed=1, batch=200)
        writer.create_topics()
        writer.more(_BEFORE)
        steps: list[tuple[float, int]] = []
        with _following(servers, options.interval, steps) as ready, _traffic(writer, options.rate) as written:
            ready()
            taken: list[float] = []
            memory: list[int] = []
            own: list[int] = []
            began, alarms = time.monotonic(), _alarms(servers)
            while len(taken) < options.violations + _UNMEASURED or time.monotonic() - began < options.minutes * 60:
                time.sleep(_BETWEEN)
                taken.append(_one(servers, writer.topics[0], len(taken), alarms))
                memory.append(_memory_mib(_spark_pid()))
                own.append(_memory_mib(os.getpid()))
                carried = steps[-1][1]
                _say(
                    f"violation {len(taken)} at {time.monotonic() - began:.0f} s: {taken[-1]:.1f} s, Spark has "
                    f"{memory[-1]:,} MiB, Python {own[-1]:,} MiB; step {len(steps)} judged {carried:,} transactions, "
                    f"of {written[0]:,} that were written"
                )
            seconds = time.monotonic() - began
            alarms.close()
    measured, rate = taken[_UNMEASURED:], round(written[0] / seconds)
    figures = {
        "follower": {
            "s until raised": summary(measured),
            "s until raised, p90": summary([sorted(measured)[int(len(measured) * 0.9)]]),
            "s of a step": summary([took for took, _ in steps[_UNMEASURED:]] or [0.0]),
            "transactions of a step": summary([judged for _, judged in steps[_UNMEASURED:]] or [0]),
            "transactions a second beside it": summary([rate]),
            "MiB of Spark": summary(memory[_UNMEASURED:]),
            "MiB of Spark at the beginning": summary(memory[_UNMEASURED : _UNMEASURED + 1]),
            "MiB of Spark at the end": summary(memory[-1:]),
            "MiB of Python at the beginning": summary(own[_UNMEASURED : _UNMEASURED + 1]),
            "MiB of Python at the end": summary(own[-1:]),
        }
    }
    raised = Ratio(median(measured), _GOAL_S, at_most=True, rounds=measured)
    return {
        "seconds_until_raised": [round(value, 2) for value in taken],
        "steps": [{"seconds": round(took, 2), "transactions_judged": judged} for took, judged in steps],
        "memory_mib": memory,
        "python_memory_mib": own,
        "transactions_per_second": rate,
        "figures": figures,
        "ratios": {"violation raised, median (s)": raised.report()},
    }


@contextmanager
def _following(servers: str, interval: float, steps: list[tuple[float, int]]) -> Iterator[Any]:
    """Start a follower in this process. Yields a function that waits until its first step is done."""
    stop, stepped, failed = threading.Event(), threading.Event(), []

    def on_step(step: AuditStep) -> None:
        steps.append((step.report.seconds, step.carried))
        stepped.set()

    def work(folder: str) -> None:
        try:
            follow(
                servers,
                folder,
                stop=stop,
                violations_topic=_ALARMS,
                interval=interval,
                namespace=_NAMESPACE,
                on_step=on_step,
            )
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            stepped.set()

    def ready() -> None:
        stepped.wait(_GIVE_UP)
        if failed or not steps:
            raise RuntimeError(f"the follower made no step: {failed}")

    with tempfile.TemporaryDirectory() as folder:
        follower = threading.Thread(target=work, args=(str(Path(folder, "ledger")),))
        follower.start()
        try:
            yield ready
        finally:
            stop.set()
            follower.join()


@contextmanager
def _traffic(writer: Writer, rate: int) -> Iterator[list[int]]:
    """Write transactions. Yields a list with the number written so far."""
    stop, written = threading.Event(), [0]

    def work() -> None:
        due = time.monotonic()
        while not stop.is_set():
            written[0] += writer.more(rate // _BATCHES)
            due += 1 / _BATCHES
            stop.wait(max(0.0, due - time.monotonic()))

    if not rate:
        yield written
        return
    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield written
    finally:
        stop.set()
        worker.join()


def _one(servers: str, topic: str, number: int, alarms: Consumer) -> float:
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


def _spark_pid() -> int:
    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)


def _memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
