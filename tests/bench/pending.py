"""Cost of a million pending half messages: memory of the worker, restart, checks, and other commits meanwhile."""

from __future__ import annotations

import argparse
import time
from os import getloadavg
from statistics import median
from typing import Any

from tests.bench.feed import Feed, LastCheckpoint, memory, say
from tests.bench.measure import PER_SECOND, ROUNDS, Ratio, summary
from tests.bench.reader_process import ReaderProcess
from tests.support.harness import Bridge, eventually
from txbridge.embedded import EmbeddedKafka

_MIB = 1024 * 1024
#: Longer than the bench.
_NEVER = 3_600_000
#: Long enough for several rounds of checks.
_CHECKS_ALONE_S = 10.0
_UNDECIDED = b"undecided"


OPTIONS = {
    "pending": (1_000_000, "half messages"),
    "size": (1_000, "bytes of each"),
    "commits": (30_000, "transactions per measurement"),
    "rounds": ROUNDS,
    # All of the million are checked within some minutes. These measurements must end before.
    "checked_rounds": (3, "the same while all are checked"),
    "check_rate": (5_000, "checks a second"),
    "payload_memory": (64 * _MIB, "bytes"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench pending", partitions=1) as bridge,
    ):
        real = bridge.create_topic("real", partitions=1)
        with ReaderProcess(kafka.bootstrap_servers, real) as reader:
            return _Bench(bridge, real, reader, options).run()


class _Bench:
    def __init__(self, bridge: Bridge, real: str, reader: ReaderProcess, options: argparse.Namespace) -> None:
        self._bridge, self._real, self._reader = bridge, real, reader
        self._options = options
        self._feed = Feed(bridge)
        self._settings: dict[str, object] = {
            "payload_memory": options.payload_memory,
            "session_timeout": 6_000,
            # Due at once, but not sent while the group has no live member, and never a second time.
            "transaction_timeout": 1_000,
            "transaction_check_interval": _NEVER,
            "transaction_check_max": 15,
            "transaction_check_rate": options.check_rate,
            "park_after": 1_000,
        }

    def run(self) -> dict[str, Any]:
        options, pending = self._options, self._options.pending
        worker = self._bridge.worker(**self._settings)
        fresh = memory(worker.pid)
        # The first measurement warms everything up.
        self._commits_per_second("warming up", 1)
        alone = self._commits_per_second("no message pending", options.rounds)
        before = memory(worker.pid)

        say(f"preparing {pending:,} half messages of {options.size:,} bytes")
        since = time.monotonic()
        self._feed.prepare(self._real, pending, options.size, _UNDECIDED)
        prepared_s = time.monotonic() - since
        self._wait_parked()
        after = memory(worker.pid)
        beside = self._commits_per_second(f"{pending:,} messages pending", options.rounds)

        say("killing the worker and starting another one")
        worker.kill()
        since = time.monotonic()
        worker = self._bridge.worker(**self._settings)
        started_s = time.monotonic() - since
        taken_over = worker.events("partition_taken_over")[0]
        restored = memory(worker.pid)

        say("somebody of their producer group comes alive: all of them are due for a check")
        with self._bridge.member() as member:
            eventually(lambda: member.count > 0, 60)
            since, checks = time.monotonic(), member.count
            checking = self._commits_per_second("checks beside", options.checked_rounds)
            checks_beside = (member.count - checks) / (time.monotonic() - since)
            since, checks = time.monotonic(), member.count
            time.sleep(_CHECKS_ALONE_S)
            checks_alone = (member.count - checks) / (time.monotonic() - since)
        return {
            "prepared_per_second": round(pending / prepared_s),
            "worker_mib": {
                "fresh": fresh // _MIB,
                "before": before // _MIB,
                "with_pending": after // _MIB,
                "after_restart": restored // _MIB,
            },
            "bytes_per_pending_beyond_the_budget": round((after - before - options.payload_memory) / pending),
            "bytes_per_pending_after_restart": round((restored - fresh) / pending),
            "restart": {
                "take_over_s": taken_over["seconds"],
                "open": taken_over["open"],
                "process_s": round(started_s, 1),
            },
            "checks_per_second": {"beside_commits": round(checks_beside), "alone": round(checks_alone)},
            "figures": {
                "commits, none pending": {PER_SECOND: summary(alone)},
                f"commits, {pending:,} pending": {PER_SECOND: summary(beside)},
                f"commits, {pending:,} pending and checked": {PER_SECOND: summary(checking)},
            },
            "ratios": {
                f"commits with {pending:,} pending to none": _to(alone, beside, 0.95),
                f"commits with {pending:,} pending and checked to none": _to(alone, checking),
            },
        }

    def _commits_per_second(self, what: str, rounds: int) -> list[float]:
        """Commits a second, from the first END record until a read_committed reader has seen the last message.

        Half messages are prepared before. The pending million cannot be added and removed in each round, so several
        rounds with it are compared with several without it.
        """
        rates = []
        for _ in range(rounds):
            prepared = self._feed.prepare(self._real, self._options.commits, self._options.size, b"committed")
            # The worker reads HALF meanwhile, as under steady traffic.
            time.sleep(2)
            self._reader.expect(len(prepared))
            since = time.monotonic()
            self._feed.commit(prepared)
            rates.append(len(prepared) / (self._reader.last_seen() - since))
            say(f"load {getloadavg()[0]:.1f}: {rates[-1]:,.0f} commits a second: {what}")
        return rates

    def _wait_parked(self) -> None:
        """Wait until the low watermark is past all of them: everything is read, and in OFFSET."""
        parked = LastCheckpoint(self._bridge)
        parked.wait("half", self._bridge.bounds(self._bridge.names.half, 0)[1])
        parked.close()
        say("all of them are parked")


def _to(alone: list[float], beside: list[float], goal: float | None = None) -> Ratio:
    """The ratio to the median of the other rounds: the two were not measured in the same rounds."""
    base = median(alone)
    return Ratio(median(beside) / base, goal, rounds=[rate / base for rate in beside])
