"""File descriptors of a worker for each partition, with one broker and with three, after the take-over and later."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from tests.bench.measure import Ratio, once
from tests.support.harness import COMMIT, Bridge
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.descriptors import needed

#: The fewest and the most partitions; what a partition needs is the slope between them.
_FEW, _MANY = 1, 8
#: By then the readers that only a take-over needs have given up their connections (s).
_LONG_S = 20.0

OPTIONS = {"brokers": ([1, 3], "sizes of the cluster")}


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures, ratios = {}, {}
    for brokers in options.brokers:
        with EmbeddedKafka(brokers=brokers) as kafka:
            few, many = (_descriptors(kafka, partitions) for partitions in (_FEW, _MANY))
        name = f"{brokers} broker{'s' if brokers > 1 else ''}"
        for when, of_few, of_many in zip(("after the take-over", "in the long run"), few, many, strict=True):
            each = (of_many - of_few) / (_MANY - _FEW)
            figures[f"{name}, {when}"] = once({"of each partition": each, f"of {_FEW}": of_few, f"of {_MANY}": of_many})
        ratios[f"{name}: used, to the stated need"] = Ratio(many[0] / needed(_MANY, brokers), 1.0, at_most=True)
    return {"figures": figures, "ratios": ratios}


def _descriptors(kafka: EmbeddedKafka, partitions: int) -> tuple[int, int]:
    """Open descriptors of a worker that has delivered messages of each partition, at once and later."""
    with Bridge(kafka.bootstrap_servers, "descriptors", partitions=partitions) as bridge:
        worker = bridge.worker()
        topic = bridge.create_topic("real")
        values = [b"%d" % number for number in range(40 * partitions)]
        bridge.decide_many(bridge.prepare_many(topic, values), COMMIT)
        bridge.wait_visible(topic, values)
        opened = Path(f"/proc/{worker.pid}/fd")
        at_once = len(list(opened.iterdir()))
        time.sleep(_LONG_S)
        return at_once, len(list(opened.iterdir()))
