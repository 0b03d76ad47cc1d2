"""Answers of a name server: every door is a broker, and every partition of a topic one of its queues."""

from __future__ import annotations

import json
from collections.abc import Sequence

#: RocketMQ's topic for topics that do not exist. The door creates none, but clients learn the address from its route.
DEFAULT_TOPIC = "TBW102"
DEFAULT_QUEUES = 4

#: Cluster name by which the doctor recognises a door.
CLUSTER = "txbridge"
#: The permission of all queues: a client drops one that it may not read from some of its lists.
READ_AND_WRITE = 6


def broker_name(address: str) -> str:
    """Broker name of an address. It is the same at every door: a client finds the address for an END by it."""
    return f"door-{address}"


def route(addresses: Sequence[str], queues: int) -> bytes:
    """Route of a topic. Any door takes messages for any partition."""
    data = [
        {
            "brokerName": broker_name(address),
            "perm": READ_AND_WRITE,
            "readQueueNums": queues,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        for address in addresses
    ]
    answer = {"brokerDatas": [*_brokers(addresses).values()], "filterServerTable": {}, "queueDatas": data}
    return json.dumps(answer, separators=(",", ":")).encode()


def cluster(addresses: Sequence[str]) -> bytes:
    """The doors as a cluster of brokers, for administrators."""
    brokers = _brokers(addresses)
    answer = {"brokerAddrTable": brokers, "clusterAddrTable": {CLUSTER: [*brokers]}}
    return json.dumps(answer, separators=(",", ":")).encode()


def _brokers(addresses: Sequence[str]) -> dict[str, dict[str, object]]:
    return {
        broker_name(address): {
            "brokerAddrs": {"0": address},
            "brokerName": broker_name(address),
            "cluster": CLUSTER,
            "enableActingMaster": False,
        }
        for address in addresses
    }
