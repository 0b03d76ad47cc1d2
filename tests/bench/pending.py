"""Cost of a million pending half messages: memory of the worker, restart, checks, and other commits meanwhile."""

from __future__ import annotations

import argparse
import json
import time
from os import getloadavg
from statistics import median
from typing import Any

from confluent_kafka import TopicPartition

from tests.bench.feed import PATIENCE_S, EndOfTopic, Feed, memory, reader, say
from tests.bench.measure import PER_SECOND, Ratio, summary
from tests.support.harness import Bridge, eventually
from txbridge.embedded import EmbeddedKafka

_MIB = 1024 * 1024
#: Longer than the bench.
_NEVER = 3_600_000
#: Long enough for several rounds of checks.
_CHECKS_ALONE_S = 10.0
_UNDECIDED = b"undecided"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pending", type=int, default=1_000_000, help="half messages (default 1,000,000)")
    parser.add_argument("--size", type=int, default=1_000, help="bytes of each (default 1,000)")
    parser.add_argument("--commits", type=int, default=30_000, help="transactions per measurement (default 30,000)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")
    # All of the million are checked within some minutes. These measurements must end before.
    parser.add_argument("--checked-rounds", type=int, default=3, help="the same while all are checked (default 3)")
    parser.add_argument("--check-rate", type=int, default=5_000, help="checks a second (default 5,000)")
    parser.add_argument("--payload-memory", type=int, default=64 * _MIB, help="bytes (default 64 MiB)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench pending", partitions=1) as bridge,
    ):
        return _Bench(bridge, options).run()


class _Bench:
    def __init__(self, bridge: Bridge, options: argparse.Namespace) -> None:
        self._bridge = bridge
        self._options = options
        self._feed = Feed(bridge)
        self._real = bridge.create_topic("real", partitions=1)
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
        fresh = memory(worker)
        # The first measurement warms everything up.
        self._commits_per_second("warming up", 1)
        alone = self._commits_per_second("no message pending", options.rounds)
        before = memory(worker)

        say(f"preparing {pending:,} half messages of {options.size:,} bytes")
        since = time.monotonic()
        self._feed.prepare(self._real, pending, options.size, _UNDECIDED)
        prepared_s = time.monotonic() - since
        self._wait_parked()
        after = memory(worker)
        beside = self._commits_per_second(f"{pending:,} messages pending", options.rounds)

        say("killing the worker and starting another one")
        worker.kill()
        since = time.monotonic()
        worker = self._bridge.worker(**self._settings)
        started_s = time.monotonic() - since
        taken_over = worker.events("partition_taken_over")[0]
        restored = memory(worker)

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
            "pending": pending,
            "bytes_each": options.size,
            "prepared_per_second": round(pending / prepared_s),
            "payload_memory_budget_mib": round(options.payload_memory / _MIB),
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
                "commits, none pending": _rates(alone),
                f"commits, {pending:,} pending": _rates(beside),
                f"commits, {pending:,} pending and checked": _rates(checking),
            },
            "ratios": {
                f"commits with {pending:,} pending to none": _to(alone, beside, 0.95).report(),
                f"commits with {pending:,} pending and checked to none": _to(alone, checking).report(),
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
            seen = EndOfTopic(self._bridge.bootstrap_servers, self._real)
            since = time.monotonic()
            self._feed.commit(prepared)
            seen.wait_for(len(prepared))
            rates.append(len(prepared) / (time.monotonic() - since))
            say(f"load {getloadavg()[0]:.1f}: {rates[-1]:,.0f} commits a second: {what}")
        return rates

    def _wait_parked(self) -> None:
        """Wait until the low watermark is past all of them: everything is read, and in OFFSET."""
        end = self._bridge.bounds(self._bridge.names.half, 0)[1]
        reader = LastCheckpoint(
            self._bridge.bootstrap_servers, self._bridge.names.offset, self._bridge.names.checkpoint_key(0)
        )
        eventually(lambda: reader.half() >= end, PATIENCE_S, "not everything was parked")
        reader.close()
        say("all of them are parked")


def _to(alone: list[float], beside: list[float], goal: float | None = None) -> Ratio:
    """The ratio to the median of the other rounds: the two were not measured in the same rounds."""
    base = median(alone)
    return Ratio(median(beside) / base, goal, rounds=[rate / base for rate in beside])


def _rates(found: list[float]) -> dict[str, dict[str, float]]:
    return {PER_SECOND: summary(found)}


class LastCheckpoint:
    """The position of the last checkpoint in HALF (the low watermark) and in END."""

    def __init__(self, servers: str, topic: str, key: bytes) -> None:
        self._consumer = reader(servers)
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._key = key
        self._last = {"half": 0, "end": 0}

    def half(self) -> int:
        return self._read()["half"]

    def end(self) -> int:
        return self._read()["end"]

    def _read(self) -> dict[str, int]:
        for message in self._consumer.consume(100_000, 1.0):
            if message.error() is None and message.key() == self._key:
                self._last = json.loads(message.value() or b"{}")
        return self._last

    def close(self) -> None:
        self._consumer.close()
