"""The audit against a bare Spark job that only reads and counts the same topics, in the same session."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from txbridge_audit import run_audit
from txbridge_audit.cluster import Cluster, partitions_of
from txbridge_audit.cuts import ranges
from txbridge_audit.session import spark_session
from txbridge_audit.settings import kafka_settings
from txbridge_audit.sources import READ_COMMITTED, read

from tests.bench.measure import PER_SECOND, summary
from tests.corruption.matrix import compare
from tests.corruption.writer import Writer
from tests.harness import cpu_seconds_in
from txbridge.embedded import EmbeddedKafka

#: Planted of every kind that is not plain: what has to be listed costs, too.
_EACH = 100
#: How names of the JVM's threads begin.
_THREADS = {
    "Executor task": "tasks",
    "C1 Compiler": "compiler",
    "C2 Compiler": "compiler",
    "GC Thread": "garbage collection",
    "G1 ": "garbage collection",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transactions",
        type=int,
        nargs="+",
        default=[300_000],
        help="sizes, each with a Kafka and a Spark of its own (default 300,000)",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    runs = [_measure(size) for size in options.transactions]
    figures = {
        f"audit of {run['transactions']:,} transactions": {
            what: summary([run[name]])
            for what, name in (
                (PER_SECOND, "transactions_per_second"),
                ("times a count", "times"),
                ("times its processor time", "cpu_times"),
                ("MiB of Spark", "peak_memory_mib"),
            )
        }
        for run in runs
    }
    # One run of each size: an audit takes long, and what it is compared with is counted in the same session.
    return {"runs": runs, "figures": figures, "ratios": {}}


def _measure(transactions: int) -> dict[str, Any]:
    with EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka:
        writer = Writer(kafka.bootstrap_servers, "bench", seed=1)
        started = time.monotonic()
        writer.plant(transactions, _EACH)
        _say(f"{transactions:,} transactions planted in {time.monotonic() - started:.0f} s")
        with spark_session(None, _say) as spark:
            # The first job of a session also loads and compiles what every job needs: it is not measured.
            _count(spark, kafka.bootstrap_servers)
            at_first = _cpu_seconds()
            bare, records = _count(spark, kafka.bootstrap_servers)
            at_last = _cpu_seconds()
            _say(f"counted {records:,} records in {bare:.1f} s")
            report = run_audit(kafka.bootstrap_servers, namespace=writer.names.namespace, spark=spark, progress=_say)
            at_end = _cpu_seconds()
            counting, auditing = (
                sum(b.values()) - sum(a.values()) for a, b in ((at_first, at_last), (at_last, at_end))
            )
            peak = _peak_mib()
        right = all(line.right for line in compare(writer.truth, report))
    return {
        "transactions": report.transactions,
        "records": records,
        "count_seconds": round(bare, 1),
        "audit_seconds": round(report.seconds, 1),
        "times": round(report.seconds / bare, 2),
        # What other work on the machine changes less.
        "count_cpu_seconds": round(counting, 1),
        "audit_cpu_seconds": round(auditing, 1),
        "cpu_times": round(auditing / counting, 2),
        "audit_cpu_by_work": {what: round(at_end[what] - at_last[what], 1) for what in sorted(at_end)},
        "transactions_per_second": round(report.transactions / report.seconds),
        "peak_memory_mib": peak,
        "all_found_and_nothing_else": right,
    }


def _count(spark: SparkSession, servers: str) -> tuple[float, int]:
    """Seconds, and the number of records in all topics of the cluster that are not Kafka's own."""
    settings = kafka_settings(servers)
    cluster = Cluster(settings)
    topics = {name: count for name, count in cluster.partition_counts().items() if not name.startswith("__")}
    keys = [key for topic, count in topics.items() for key in partitions_of(topic, count)]
    started = time.monotonic()
    spans = ranges(cluster.log_starts(keys), cluster.stable_offsets(keys))
    counted = read(spark, settings, spans, READ_COMMITTED).count()
    return time.monotonic() - started, counted


def _cpu_seconds() -> dict[str, float]:
    """Processor time of Spark's JVM so far, by what its threads do."""
    gateway: Any = SparkContext._gateway
    found: dict[str, float] = defaultdict(float)
    for thread in Path(f"/proc/{gateway.proc.pid}/task").iterdir():
        try:
            stat = (thread / "stat").read_text()
        except FileNotFoundError:  # it has just ended
            continue
        name = stat.partition("(")[2].rpartition(")")[0]
        what = next((what for begin, what in _THREADS.items() if name.startswith(begin)), "planning and the rest")
        found[what] += cpu_seconds_in(stat)
    return found


def _peak_mib() -> int:
    """Largest resident size of Spark's JVM so far."""
    gateway: Any = SparkContext._gateway
    status = Path(f"/proc/{gateway.proc.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) // 1024 if found else 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
