"""Costs of a way: processor time of each process, bytes of WAL and of Kafka's log, statements, memory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.bench.feed import memory
from tests.bench.measure import Found
from tests.bench.outbox.shop import Shop
from tests.bench.report import CPU
from tests.support.harness import cpu_seconds_in

APP, POSTGRES, KAFKA, RELAY = "app", "PostgreSQL", "Kafka", "relay"
IN_ALL = "us of all processes, each order"
WAL, STATEMENTS, KAFKA_BYTES = "WAL B, each order", "statements, each order", "Kafka B, each order"
MEMORY, IDLE = "MB, relay", "ms a second, relay and Kafka"
MEMORY_ALONE = "MB, relay without what runs beside it"
_COMPILERS = ("C1 Compiler", "C2 Compiler")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
#: Kafka's own log of its metadata grows while nothing happens.
_METADATA = "__cluster_metadata-0"


class Counts(NamedTuple):
    """Everything that is counted, at one time."""

    cpu: Mapping[str, float]
    wal: float
    statements: float
    kafka: int


def count(shop: Shop, app: Sequence[int], relay: Sequence[int]) -> Counts:
    """Read all counters. `app` and `relay` are processes, whose children count, too."""
    groups = {APP: app, POSTGRES: [shop.postgres.pid], KAFKA: [shop.kafka.pid], RELAY: relay}
    return Counts(
        {name: cpu_seconds(pids) for name, pids in groups.items()},
        shop.query("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"),
        shop.query("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements"),
        sum(
            segment.stat().st_size
            for segment in Path(shop.kafka.data_dir).rglob("*-[0-9]*/*.log")
            if segment.parent.name != _METADATA
        ),
    )


def each_order(before: Counts, after: Counts, orders: int) -> Found:
    """What was counted between, for each order."""
    cpu = {name: (after.cpu[name] - before.cpu[name]) / orders * 1e6 for name in before.cpu}
    return {
        IN_ALL: sum(cpu.values()),
        **{f"{CPU}{name}": us for name, us in cpu.items()},
        WAL: (after.wal - before.wal) / orders,
        STATEMENTS: (after.statements - before.statements) / orders,
        KAFKA_BYTES: (after.kafka - before.kafka) / orders,
    }


def a_second(before: Counts, after: Counts, seconds: float) -> Found:
    """Processor time between, in ms a second."""
    cpu = {name: (after.cpu[name] - before.cpu[name]) / seconds * 1e3 for name in before.cpu}
    return {IDLE: cpu[RELAY] + cpu[KAFKA], **{f"ms a second, {name}": cpu[name] for name in (RELAY, KAFKA, POSTGRES)}}


def memory_mb(pids: Sequence[int]) -> float:
    """Resident memory of these processes (MB)."""
    return sum(memory(pid) for pid in pids) / 1e6


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time of these processes and all their descendants, those that have ended and were waited for too.

    Each has a clock, as of clock_getcpuclockid(3). /proc/PID/stat counts ticks of 10 ms: too coarse for PostgreSQL,
    which has a process for each connection. What Java's compilers take is left out: it is half of Kafka's time in the
    first minutes at 20 orders a second, and none in a Kafka that has run for months.
    """
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has just ended, and its parent has its time.
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    found, wanted = 0.0, set(pids)
    while wanted:
        for pid in wanted & stats.keys():
            with suppress(OSError):
                found += time.clock_gettime((~pid << 3) | 2) - _compilers_seconds(pid)
            # cutime and cstime.
            found += sum(map(int, stats[pid][13:15])) * _TICK_S
        wanted = {pid for pid, one in stats.items() if int(one[1]) in wanted}
    return found


def _compilers_seconds(pid: int) -> float:
    """Processor time of the threads that compile Java, if the process has them. Ticks will do: they are few."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return sum(cpu_seconds_in(stat) for stat in stats if stat.partition("(")[2].startswith(_COMPILERS))
