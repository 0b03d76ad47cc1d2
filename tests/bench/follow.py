"""Time in which `txbridge audit --follow` raises a violation: from the record until it is in the violations topic.

With `--rate`, legal transactions are written meanwhile. With `--minutes`, the measurement lasts that long. The report
has the memory of this process, which follows and writes the transactions, at the beginning and at the end, so that
growth shows. The rate beside it is the written one, which is lower on a machine that is too small.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from txbridge_audit.audit import follow
from txbridge_audit.engines.local.follow import INTERVAL
from txbridge_audit.report.alarms import AuditStep

from tests.bench.beside import beside
from tests.bench.feed import memory, say
from tests.bench.measure import Ratio, summary
from tests.corruption.writer import Writer
from tests.support.harness import quiet
from txbridge.embedded import EmbeddedKafka

_NAMESPACE, _ALARMS = "follow", "alarms"
#: The goal for the median (s).
_GOAL_S = 5
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
        admin = AdminClient(quiet(servers))
        admin.create_topics([NewTopic(_ALARMS, 1, 1)])[_ALARMS].result()
        writer = Writer(servers, _NAMESPACE, seed=1, batch=200)
        writer.create_topics()
        writer.more(_BEFORE)
        steps: list[tuple[float, int]] = []
        written = [0]
        with (
            _following(servers, options.interval, steps) as ready,
            beside(partial(_write, writer, options.rate, written)),
        ):
            ready()
            taken: list[float] = []
            mib: list[float] = []
            began, alarms = time.monotonic(), _alarms(servers)
            while len(taken) < options.violations + _UNMEASURED or time.monotonic() - began < options.minutes * 60:
                time.sleep(_BETWEEN)
                taken.append(_measure_one(servers, writer.topics[0], len(taken), alarms))
                mib.append(memory(os.getpid()) / 2**20)
                say(
                    f"violation {len(taken)} at {time.monotonic() - began:.0f} s: {taken[-1]:.1f} s, "
                    f"{mib[-1]:,.0f} MiB; step {len(steps)} judged {steps[-1][1]:,} transactions, of {written[0]:,} "
                    "that were written"
                )
            seconds = time.monotonic() - began
            alarms.close()
    measured, counted = taken[_UNMEASURED:], steps[_UNMEASURED:] or [(0.0, 0)]
    mib = mib[_UNMEASURED:]
    figures = {
        "s until raised": summary(measured),
        "s until raised, p90": summary([sorted(measured)[int(len(measured) * 0.9)]]),
        "s of a step": summary([took for took, _ in counted]),
        "transactions of a step": summary([judged for _, judged in counted]),
        "transactions a second beside it": summary([written[0] / seconds]),
        "MiB": summary(mib),
        "MiB at the beginning": summary(mib[:1]),
        "MiB at the end": summary(mib[-1:]),
    }
    raised = Ratio(median(measured), _GOAL_S, at_most=True, rounds=measured)
    return {
        "seconds_until_raised": taken,
        "steps": [{"seconds": took, "transactions_judged": judged} for took, judged in steps],
        "figures": {"follower": figures},
        "ratios": {"violation raised, median (s)": raised},
    }


@contextmanager
def _following(servers: str, interval: float, steps: list[tuple[float, int]]) -> Iterator[Callable[[], None]]:
    """Start a follower in this process. Yields a function that waits until its first step is done."""
    stepped = threading.Event()

    def on_step(step: AuditStep) -> None:
        steps.append((step.report.seconds, step.carried))
        stepped.set()

    def work(ended: threading.Event) -> None:
        try:
            follow(
                servers,
                str(Path(folder, "ledger")),
                stop=ended,
                violations_topic=_ALARMS,
                interval=interval,
                namespace=_NAMESPACE,
                on_step=on_step,
            )
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            stepped.set()

    def ready() -> None:
        if not stepped.wait(_GIVE_UP) or not steps:
            raise RuntimeError("the follower made no step; its error stands above")

    with tempfile.TemporaryDirectory() as folder, beside(work):
        yield ready


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
