"""Bytes in Kafka's log for each transaction, by topic, against the user's bytes, and the bytes that a check adds."""

from __future__ import annotations

import argparse
from typing import Any

from tests.bench.feed import PATIENCE_S
from tests.bench.measure import Ratio, once
from tests.bench.stand import standing
from tests.support.harness import Bridge, eventually
from tests.support.log_bytes import log_bytes
from txbridge.embedded import EmbeddedKafka

#: No message shall be checked twice (ms).
_NEVER = 3_600_000
_KEY = 5

OPTIONS = {
    "transactions": (20_000, "of the pipelined client"),
    "sizes": ([100, 1_000], "bytes of values"),
    "checks": (1_000, "in one round"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    # Bytes are exact counts, so there is no median.
    figures = {f"bytes each, {size:,} B": once(_transactions(options.transactions, size)) for size in options.sizes}
    left = _checks(options.checks)
    return {
        "figures": {**figures, "bytes that a check leaves": once(left)},
        "ratios": {"bytes that a check leaves in durable topics": Ratio(sum(left.values()), 300, at_most=True)},
    }


def _transactions(count: int, size: int) -> dict[str, float]:
    with EmbeddedKafka(jvm_profile="throughput") as kafka, standing(kafka) as stand:
        topics = stand.topics
        before = log_bytes(kafka, topics.values())
        stand.measure(stand.clients.pipelined, count, size)
        written = log_bytes(kafka, topics.values()) - before
        each = {name: written[topic] / count for name, topic in topics.items()}
        return {"user": float(size + _KEY), **each, "all": sum(each.values())}


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
        written = log_bytes(kafka, topics.values()) - before
        return {name: written[topic] / count for name, topic in topics.items()}
