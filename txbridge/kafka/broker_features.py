"""The requests that txbridge needs of every broker, and the sentence for a broker that lacks one.

A broker tells by ApiVersions which requests it knows, and of each the oldest and the newest version. librdkafka keeps
that answer to itself, so it is asked by aiokafka, which a worker needs anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import ApiVersionRequest

from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.aiokafka_client import aiokafka_client
from txbridge.kafka.log import without_aiokafka

#: The oldest and the newest version of each request that a broker knows, by Kafka's number of the request.
Versions = Mapping[int, tuple[int, int]]

#: For one broker, connecting included: milliseconds on a healthy one. A start of a worker waits for it.
_REQUEST_TIMEOUT_S = 3.0
#: For all brokers of a cluster: one that hangs must not keep a worker from its work.
_PATIENCE_S = 10.0


class ApiKey(IntEnum):
    """Kafka's numbers of requests."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_TRANSACTIONS = 65


@dataclass(frozen=True, slots=True)
class Need:
    """A request, and the least version of it that will do."""

    key: ApiKey
    name: str
    version: int
    #: The release of Kafka that brought it.
    since: str
    why: str


NEEDS = (
    Need(ApiKey.PRODUCE, "Produce", 3, "0.11", "records with headers"),
    Need(ApiKey.FETCH, "Fetch", 4, "0.11", "readers of committed records"),
    Need(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, "0.11", "the fence of a partition"),
    Need(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, "0.11", "Kafka transactions"),
    Need(ApiKey.END_TXN, "EndTxn", 0, "0.11", "Kafka transactions"),
    Need(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, "2.0", "readers that notice a lost tail"),
    Need(ApiKey.METADATA, "Metadata", 10, "2.8", "ids of topics: one that was recreated is noticed"),
    Need(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, "3.0", "hanging transactions are found"),
)
#: What to do about a broker that lacks one.
REMEDY = "use brokers of Apache Kafka 3.9 or later, or a service that speaks all of its transactions"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the brokers said."""

    #: By broker.
    versions: Mapping[int, Versions]
    #: Brokers that did not answer, with their addresses.
    unreachable: Mapping[int, str]


def lacking(versions: Versions) -> str:
    """What a broker lacks, and what it has of it; empty when it has everything."""
    return ", ".join(
        f"{need.name} {need.version} of Kafka {need.since} ({need.why}; found {_found(versions.get(need.key))})"
        for need in NEEDS
        if need.key not in versions or versions[need.key][1] < need.version
    )


def _found(known: tuple[int, int] | None) -> str:
    return "none" if known is None else f"{known[0]} to {known[1]}"


async def ask_versions(client: AIOKafkaClient, seconds: float | None = None) -> Asked:
    """Ask each broker of the cluster, one after the other; after `seconds` no further one is asked."""
    deadline = Deadline(seconds)
    versions: dict[int, Versions] = {}
    unreachable: dict[int, str] = {}
    for broker in client.cluster.brokers():
        if deadline.is_over:
            break
        try:
            answer = await client.send(broker.nodeId, ApiVersionRequest())
        except (kafka_errors.KafkaError, OSError, TimeoutError):
            unreachable[broker.nodeId] = f"{broker.host}:{broker.port}"
        else:
            versions[broker.nodeId] = {key: (least, most) for key, least, most in answer.api_versions}
    return Asked(versions, unreachable)


def require_features(kafka: Mapping[str, Any]) -> None:
    """Raise EnvironmentProblemError that names each broker that lacks something, and what.

    A broker that does not answer is no reason to refuse: the others do its work.
    """
    # In a thread of its own: the caller's may have an event loop, or be about to get one.
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(asyncio.run, _ask(kafka)).result()
    found = [f"broker {node} lacks {what}" for node, known in sorted(asked.items()) if (what := lacking(known))]
    if found:
        raise EnvironmentProblemError(
            "a worker cannot work with these brokers:\n- " + "\n- ".join(found) + f"\nWhat to do: {REMEDY}"
        )


async def _ask(kafka: Mapping[str, Any]) -> Mapping[int, Versions]:
    client = aiokafka_client(kafka, "start", _REQUEST_TIMEOUT_S)
    try:
        # Its lines about brokers that are down say nothing that the worker's own do not.
        with without_aiokafka():
            await client.bootstrap()
            return (await ask_versions(client, _PATIENCE_S)).versions
    except (kafka_errors.KafkaError, OSError, TimeoutError):
        # librdkafka has just been answered: Faust will say what keeps aiokafka from it.
        return {}
    finally:
        await client.close()
