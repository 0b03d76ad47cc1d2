"""Work of three brokers for each transaction: bytes of all replicas, coordinators' records, markers, processor time."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from tests.bench.load import Clients
from tests.bench.measure import SIZE, Ratio, once
from tests.bench.stand import Stand, standing
from tests.support.broker_metadata import wait_in_sync
from tests.support.harness import cpu_seconds
from tests.support.log_bytes import appended, log_bytes, markers
from txbridge.embedded import EmbeddedKafka

#: Replicas of every topic, Kafka's own ones included.
_COPIES = 3
_PARTITIONS = 4
_STATE = "__transaction_state"
#: The longest send time-out that a client may have.
_SEND_MS = 30_000
#: Topics to which every Kafka transaction with a delivery writes.
_MARKED = ("op", "offset", "real topic")

OPTIONS = {"transactions": (20_000, "of the pipelined client"), "size": SIZE}


def run(options: argparse.Namespace) -> dict[str, Any]:
    count = options.transactions
    config = {"transaction.state.log.num.partitions": "50"}
    with (
        EmbeddedKafka(brokers=_COPIES, jvm_profile="throughput", heap="512m", config=config) as kafka,
        standing(kafka, partitions=_PARTITIONS) as stand,
    ):
        # A flood at once is not the subject of this bench: three cold JVMs on few cores need more than the client's
        # 3 s.
        clients = Clients(kafka.bootstrap_servers, stand.bridge.namespace, {"message.timeout.ms": _SEND_MS})
        stand.measure(clients.pipelined, count, options.size)
        before = _counts(kafka, stand)
        stand.measure(clients.pipelined, count, options.size)
        more = _counts(kafka, stand)
        more.subtract(before)
        brokers = [node.node_id for node in kafka.brokers]
        topics = [*stand.topics, "coordinators"]
    transactions, cpu = more["transactions"], [more["cpu", broker] for broker in brokers]
    figures = {
        "bytes of all copies, each": {name: more["bytes", name] / count for name in topics},
        "Kafka transactions": {"for each 1,000 transactions": transactions / count * 1_000},
        "for each Kafka transaction": {
            "records of coordinators": more["records"] / _COPIES / transactions,
            **{f"markers, {name}": more["markers", name] / _COPIES / transactions for name in _MARKED},
        },
        "cpu us, each": {f"broker {broker}": more["cpu", broker] / count * 1e6 for broker in brokers},
    }
    return {
        "figures": {name: once(each) for name, each in figures.items()},
        "ratios": {"processor time of the busiest broker, of all": Ratio(max(cpu) / sum(cpu))},
    }


def _counts(kafka: EmbeddedKafka, stand: Stand) -> Counter[Any]:
    """Everything that has grown so far. Followers then have all records of the leaders."""
    wait_in_sync(kafka)
    topics = {**stand.topics, "coordinators": _STATE}
    written = log_bytes(kafka, topics.values())
    # The number of the worker's Kafka transactions is in its checkpoints.
    checkpoints = (stand.bridge.checkpoint(partition) for partition in range(_PARTITIONS))
    return Counter(
        {
            **{("bytes", name): written[topic] for name, topic in topics.items()},
            **{("markers", name): markers(kafka, topics[name]) for name in _MARKED},
            **{("cpu", node.node_id): cpu_seconds(node.pid) for node in kafka.brokers},
            "records": appended(kafka, _STATE),
            "transactions": sum(int(str(one.get("seq", 0))) for one in checkpoints),
        }
    )
