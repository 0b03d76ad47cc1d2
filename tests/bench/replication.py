"""Work of three brokers for each transaction: bytes of all replicas, coordinators' records, markers, processor time."""

from __future__ import annotations

import argparse
from typing import Any

from tests.bench.load import Clients, Mix
from tests.bench.measure import Ratio, summary
from tests.bench.stand import Stand
from tests.support.broker_metadata import wait_in_sync
from tests.support.harness import cpu_seconds
from tests.support.log_bytes import appended, growth, log_bytes, markers
from txbridge.embedded import EmbeddedKafka

#: Replicas of every topic, Kafka's own ones included.
_COPIES = 3
_PARTITIONS = 4
_STATE = "__transaction_state"
#: The longest send time-out that a client may have.
_SEND_MS = 30_000
#: Topics to which every Kafka transaction with a delivery writes.
_MARKED = ("op", "offset", "real topic")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=20_000, help="of the pipelined client (default 20,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of values (default 100)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    count = options.transactions
    config = {"transaction.state.log.num.partitions": "50"}
    with (
        EmbeddedKafka(brokers=_COPIES, jvm_profile="throughput", heap="512m", config=config) as kafka,
        Stand(kafka, partitions=_PARTITIONS) as stand,
    ):
        names = stand.names
        topics = {
            "half": names.half,
            "end": names.end,
            "op": names.op,
            "offset": names.offset,
            "real topic": stand.real_topic,
            "coordinators": _STATE,
        }
        # A flood at once is not the subject of this bench: three cold JVMs on few cores need more than the client's 3
        # s.
        clients = Clients(kafka.bootstrap_servers, stand.bridge.namespace, {"message.timeout.ms": _SEND_MS})
        stand.measure(clients.pipelined, count, options.size, Mix())
        wait_in_sync(kafka)
        before, sequence = log_bytes(kafka, topics.values()), _sequence(stand)
        told = appended(kafka, _STATE)
        marked = {name: markers(kafka, topics[name]) for name in _MARKED}
        used = {node.node_id: cpu_seconds(node.pid) for node in kafka.brokers}
        stand.measure(clients.pipelined, count, options.size, Mix())
        # Followers then have all records of the leaders.
        wait_in_sync(kafka)
        written = growth(log_bytes(kafka, topics.values()), before)
        transactions = _sequence(stand) - sequence
        told = appended(kafka, _STATE) - told
        marked = {name: markers(kafka, topics[name]) - marked[name] for name in _MARKED}
        cpu = {f"broker {node.node_id}": cpu_seconds(node.pid) - used[node.node_id] for node in kafka.brokers}
        figures = {
            "bytes of all copies, each": {name: written[topic] / count for name, topic in topics.items()},
            "Kafka transactions": {"for each 1,000 transactions": transactions / count * 1_000},
            "for each Kafka transaction": {
                "records of coordinators": told / _COPIES / transactions,
                **{f"markers, {name}": marked[name] / _COPIES / transactions for name in _MARKED},
            },
            "cpu us, each": {broker: seconds / count * 1e6 for broker, seconds in cpu.items()},
        }
        total, largest = sum(cpu.values()), max(cpu.values())
    return {
        "figures": {name: _counted(each) for name, each in figures.items()},
        "ratios": {"processor time of the busiest broker, of all": Ratio(largest / total).report()},
    }


def _counted(each: dict[str, float]) -> dict[str, dict[str, float]]:
    return {name: summary([value]) for name, value in each.items()}


def _sequence(stand: Stand) -> int:
    """Number of the worker's Kafka transactions so far, from its checkpoints."""
    checkpoints = (stand.bridge.checkpoint(partition) for partition in range(_PARTITIONS))
    return sum(int(str(one.get("seq", 0))) for one in checkpoints)
