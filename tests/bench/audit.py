"""The audit against a bare Spark job that only reads and counts the same topics, on the same Spark.

The job is measured twice, and the audit compared with both. `bare` has the defaults of Spark and of Kafka's client, as
most people would write it. `tuned` has the settings with which the audit reads, and takes less than half the time. Both
count committed records, to the same ends. Before that each runs once unmeasured: the first job of a Spark also loads
and compiles the code that every job needs. The audit has no such rehearsal.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from txbridge_audit import run_audit
from txbridge_audit.cluster.cuts import Range, ranges
from txbridge_audit.cluster.kafka_admin import AuditedCluster, partitions_of
from txbridge_audit.cluster.kafka_config import KafkaSettings, kafka_settings
from txbridge_audit.engines.spark.spark_audit import read
from txbridge_audit.engines.spark.spark_session import spark_session
from txbridge_audit.judge.facts import TopicPartition

from tests.bench.feed import memory, say
from tests.bench.measure import PER_SECOND, Ratio, once
from tests.corruption.matrix import compare
from tests.corruption.writer import Writer
from tests.support.harness import cpu_seconds, cpu_seconds_in
from txbridge.embedded import EmbeddedKafka

#: The goal: an audit takes at most this many times as long as a bare count.
_GOAL = 3
_FIGURES = {
    PER_SECOND: "transactions_per_second",
    "times a bare count": "times_bare",
    "times a tuned count": "times_tuned",
    "times the bare count's processor time": "cpu_times_bare",
    "times the tuned count's processor time": "cpu_times_tuned",
    "MiB of Spark": "peak_memory_mib",
}
#: Beginnings of the names of the JVM's threads.
_THREADS = {
    "Executor task": "tasks",
    "C1 Compiler": "compiler",
    "C2 Compiler": "compiler",
    "GC Thread": "garbage collection",
    "G1 ": "garbage collection",
}


OPTIONS = {
    "transactions": ([300_000], "sizes, each with a Kafka and a Spark of its own"),
    "each": (100, "planted of every kind that is not plain: what is listed costs, too; 0: clean topics"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    runs = [_measure(size, options.each) for size in options.transactions]
    figures = {
        f"audit of {run['transactions']:,} transactions": once({what: run[name] for what, name in _FIGURES.items()})
        for run in runs
    }
    # One run of each size: an audit takes long, and the counts to compare it with are made in the same session.
    ratios = {
        f"audit of {run['transactions']:,} to a bare count": Ratio(run["times_bare"], _GOAL, at_most=True)
        for run in runs
    }
    return {"runs": runs, "figures": figures, "ratios": ratios}


def _measure(transactions: int, each: int) -> dict[str, Any]:
    with EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka:
        writer = Writer(kafka.bootstrap_servers, "bench", seed=1)
        started = time.monotonic()
        writer.plant(transactions, each)
        say(f"{transactions:,} transactions planted in {time.monotonic() - started:.0f} s")
        with spark_session(None, say) as spark:
            counts = {
                "bare": lambda: _bare(spark.newSession(), kafka.bootstrap_servers),
                "tuned": lambda: _tuned(spark, kafka.bootstrap_servers),
            }
            for count in counts.values():
                count()
            counted = {name: _measured(name, count) for name, count in counts.items()}
            at_start = _cpu_seconds()
            report = run_audit(kafka.bootstrap_servers, namespace=writer.names.namespace, spark=spark, progress=say)
            at_end = _cpu_seconds()
            auditing = sum(at_end.values()) - sum(at_start.values())
            peak = memory(spark_pid(), "VmHWM") // 2**20
        right = all(line.right for line in compare(writer.truth, report))
    return {
        "transactions": report.transactions,
        "records": counted["bare"].records,
        **{f"{name}_count_seconds": round(one.seconds, 1) for name, one in counted.items()},
        "audit_seconds": round(report.seconds, 1),
        **{f"times_{name}": round(report.seconds / one.seconds, 2) for name, one in counted.items()},
        # Processor time, which depends less on other work of the machine.
        **{f"{name}_count_cpu_seconds": round(one.cpu_seconds, 1) for name, one in counted.items()},
        "audit_cpu_seconds": round(auditing, 1),
        **{f"cpu_times_{name}": round(auditing / one.cpu_seconds, 2) for name, one in counted.items()},
        "audit_cpu_by_work": {what: round(at_end[what] - at_start[what], 1) for what in sorted(at_end)},
        "transactions_per_second": round(report.transactions / report.seconds),
        "peak_memory_mib": peak,
        "all_found_and_nothing_else": right,
    }


@dataclass(frozen=True, slots=True)
class _Counted:
    records: int
    seconds: float
    cpu_seconds: float


def _measured(name: str, count: Callable[[], int]) -> _Counted:
    before, started = _cpu_seconds(), time.monotonic()
    records = count()
    took, cpu = time.monotonic() - started, sum(_cpu_seconds().values()) - sum(before.values())
    say(f"{name}: counted {records:,} records in {took:.1f} s")
    return _Counted(records, took, cpu)


def _bare(spark: SparkSession, servers: str) -> int:
    """Count the records in all topics of the cluster that are not Kafka's own. `spark` has Spark's defaults."""
    topics = _topics(AuditedCluster(kafka_settings(servers)))
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", ",".join(topics))
    return reader.option("kafka.isolation.level", "read_committed").load().count()


def _tuned(spark: SparkSession, servers: str) -> int:
    """Count the same records with the audit's way of reading. `spark` is set up like the audit's."""
    settings = kafka_settings(servers)
    return read(spark, settings, _spans(settings), committed=True).count()


def _spans(settings: KafkaSettings) -> dict[TopicPartition, Range]:
    cluster = AuditedCluster(settings)
    keys = [key for topic, count in _topics(cluster).items() for key in partitions_of(topic, count)]
    return ranges(cluster.log_starts(keys), cluster.stable_offsets(keys))


def _topics(cluster: AuditedCluster) -> dict[str, int]:
    """Topics with their partition numbers."""
    return {name: count for name, count in cluster.partition_counts().items() if not name.startswith("__")}


def _cpu_seconds() -> dict[str, float]:
    """Processor time of Spark so far: of its JVM by kind of thread, and of its Python workers."""
    found: dict[str, float] = defaultdict(float)
    for thread in Path(f"/proc/{spark_pid()}/task").iterdir():
        try:
            stat = (thread / "stat").read_text()
        except FileNotFoundError:  # The thread has just ended.
            continue
        name = stat.partition("(")[2].rpartition(")")[0]
        what = next((what for begin, what in _THREADS.items() if name.startswith(begin)), "planning and the rest")
        found[what] += cpu_seconds_in(stat)
    found["Python"] = sum(map(_tree_seconds, _children(spark_pid())))
    return found


def _tree_seconds(pid: int) -> float:
    try:
        own = cpu_seconds(pid)
    except FileNotFoundError:
        return 0.0
    return own + sum(map(_tree_seconds, _children(pid)))


def _children(pid: int) -> list[int]:
    # Any thread of the JVM may have started one.
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for found in lists for child in found.read_text().split()]


def spark_pid() -> int:
    """The process of Spark's JVM."""
    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)
