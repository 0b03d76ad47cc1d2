"""The requests that txbridge needs of every broker, and the message about a broker that lacks one.

A broker's answer to ApiVersions lists the requests that it supports, each with the oldest and the newest version.
librdkafka does not expose that answer, so aiokafka sends the request. A worker needs aiokafka anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import ApiVersionRequest

from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.aiokafka_client import aiokafka_client, aiokafka_runner

#: The oldest and the newest version of each request that a broker supports, by API key.
Versions = Mapping[int, tuple[int, int]]

#: Time limit for one broker (s), connecting included. A healthy one needs milliseconds. A worker's start waits for it.
_REQUEST_TIMEOUT_S = 3.0
#: Time limit for all brokers of a cluster (s): brokers that hang must not keep a worker from its work.
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Need:
    """A request, and the lowest version of it that txbridge can use."""

    #: Kafka's API key.
    key: int
    name: str
    version: int
    #: The release of Kafka that brought it.
    since: str
    why: str


NEEDS = (
    Need(0, "Produce", 3, "0.11", "records with headers"),
    Need(1, "Fetch", 4, "0.11", "readers of committed records"),
    Need(22, "InitProducerId", 0, "0.11", "the fence of a partition"),
    Need(24, "AddPartitionsToTxn", 0, "0.11", "Kafka transactions"),
    Need(26, "EndTxn", 0, "0.11", "Kafka transactions"),
    Need(23, "OffsetForLeaderEpoch", 2, "2.0", "readers that notice a lost tail"),
    Need(3, "Metadata", 10, "2.8", "ids of topics: one that was recreated is noticed"),
    Need(65, "DescribeTransactions", 0, "3.0", "kafka-transactions.sh, which ends a hanging one"),
)
#: Remedy for a broker that lacks one.
REMEDY = "use brokers of Apache Kafka 3.9 or later, or a service that speaks all of its transactions"


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers of the brokers."""

    #: By broker id.
    versions: Mapping[int, Versions]
    #: Brokers that did not answer, with their addresses.
    unreachable: Mapping[int, str]


def lacking(versions: Versions) -> str:
    """The requests that a broker lacks, with the versions that it has; empty when it lacks none."""
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
    """Raise EnvironmentProblemError if a broker lacks a request; the text names each broker and request.

    A broker that does not answer is no reason to refuse: the others do its work.
    """
    # In a thread of its own: the caller's thread may have an event loop, or get one soon.
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(_ask, kafka).result()
    found = [f"broker {node} lacks {what}" for node, known in sorted(asked.items()) if (what := lacking(known))]
    if found:
        raise EnvironmentProblemError(
            "a worker cannot work with these brokers:\n- " + "\n- ".join(found) + f"\nWhat to do: {REMEDY}"
        )


def _ask(kafka: Mapping[str, Any]) -> Mapping[int, Versions]:
    async def ask() -> Mapping[int, Versions]:
        client = aiokafka_client(kafka, "start", _REQUEST_TIMEOUT_S)
        await client.bootstrap()
        return (await ask_versions(client, _PATIENCE_S)).versions

    # aiokafka's log lines about brokers that are down add nothing to the worker's own lines.
    with aiokafka_runner() as runner:
        try:
            return runner.run(ask())
        except (kafka_errors.KafkaError, OSError, TimeoutError):
            # librdkafka has just had an answer. Faust will report why aiokafka gets none.
            return {}
