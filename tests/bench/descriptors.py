"""File descriptors of a worker for each partition, with one broker and with three."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tests.bench.measure import Ratio, once
from tests.support.harness import COMMIT, Bridge
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.descriptors import needed

#: The fewest and the most partitions; what a partition needs is the slope between them.
_FEW, _MANY = 1, 8

OPTIONS = {"brokers": ([1, 3], "sizes of the cluster")}


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures, ratios = {}, {}
    for brokers in options.brokers:
        with EmbeddedKafka(brokers=brokers) as kafka:
            few, many = (_descriptors(kafka, partitions) for partitions in (_FEW, _MANY))
        name = f"{brokers} broker{'s' if brokers > 1 else ''}"
        each = (many - few) / (_MANY - _FEW)
        figures[name] = once({"of each partition": each, f"of {_FEW}": few, f"of {_MANY}": many})
        ratios[f"{name}: used, to the stated need"] = Ratio(many / needed(_MANY, brokers), 1.0, at_most=True)
    return {"figures": figures, "ratios": ratios}


def _descriptors(kafka: EmbeddedKafka, partitions: int) -> int:
    """Open descriptors of a worker that has delivered messages of each partition."""
    with Bridge(kafka.bootstrap_servers, "descriptors", partitions=partitions) as bridge:
        worker = bridge.worker()
        topic = bridge.create_topic("real")
        values = [b"%d" % number for number in range(40 * partitions)]
        bridge.decide_many(bridge.prepare_many(topic, values), COMMIT)
        bridge.wait_visible(topic, values)
        return len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))
