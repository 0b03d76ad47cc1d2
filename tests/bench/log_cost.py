"""Bytes in Kafka's log for each transaction, by topic, against the user's bytes, and the bytes that a check adds."""

from __future__ import annotations

import argparse
from typing import Any

from tests.bench.feed import PATIENCE_S
from tests.bench.load import Mix
from tests.bench.measure import Ratio, summary
from tests.bench.stand import Stand
from tests.support.harness import Bridge, eventually
from tests.support.log_bytes import growth, log_bytes
from txbridge.embedded import EmbeddedKafka

#: No message shall be checked twice (ms).
_NEVER = 3_600_000
_KEY = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=20_000, help="of the pipelined client (default 20,000)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], help="bytes of values (default 100 1000)")
    parser.add_argument("--checks", type=int, default=1_000, help="in one round (default 1,000)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures = {f"{size:,} B": _transactions(options.transactions, size) for size in options.sizes}
    left = _checks(options.checks)
    # Bytes are exact counts, so there is no median.
    return {
        "figures": {
            **{f"bytes each, {name}": _counted(each) for name, each in figures.items()},
            "bytes that a check leaves": _counted(left),
        },
        "ratios": {
            "bytes that a check leaves in durable topics": Ratio(sum(left.values()), 300, at_most=True).report()
        },
    }


def _counted(each: dict[str, float]) -> dict[str, dict[str, float]]:
    return {name: summary([value]) for name, value in each.items()}


def _transactions(count: int, size: int) -> dict[str, float]:
    with EmbeddedKafka(jvm_profile="throughput") as kafka, Stand(kafka) as stand:
        names = stand.names
        topics = {
            "half": names.half,
            "end": names.end,
            "op": names.op,
            "offset": names.offset,
            "real topic": stand.real_topic,
        }
        before = log_bytes(kafka, topics.values())
        stand.measure(stand.clients.pipelined, count, size, Mix())
        written = growth(log_bytes(kafka, topics.values()), before)
        each = {name: round(written[topic] / count, 1) for name, topic in topics.items()}
        return {"user": float(size + _KEY), **each, "all": round(sum(each.values()), 1)}


def _checks(count: int) -> dict[str, float]:
    with (
        EmbeddedKafka(jvm_profile="throughput") as kafka,
        Bridge(kafka.bootstrap_servers, "bench checks", partitions=1) as bridge,
    ):
        names, real = bridge.names, bridge.create_topic("real", partitions=1)
        bridge.worker(
            transaction_timeout=1_000,
            transaction_check_interval=_NEVER,
            transaction_check_max=15,
            transaction_check_rate=10_000,
        )
        topics = {"half": names.half, "end": names.end, "op": names.op, "offset": names.offset}
        bridge.prepare_many(real, [b"v" * 1_000] * count)
        before = log_bytes(kafka, topics.values())
        with bridge.member() as member:
            eventually(lambda: member.count == count, PATIENCE_S)
        written = growth(log_bytes(kafka, topics.values()), before)
        return {name: round(written[topic] / count, 1) for name, topic in topics.items()}
