"""Requests that neither of our Kafka clients has: DescribeQuorum v1, DescribeProducers v0, DescribeTransactions v0.

The schemas are those of Kafka's message definitions. None of these requests changes anything on a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields


class ApiKey(IntEnum):
    """Kafka's numbers of these requests."""

    DESCRIBE_QUORUM = 55
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65


_METADATA_TOPIC = "__cluster_metadata"


#: Fields of a replica in DescribeQuorum v1.
_REPLICA = (
    ("replica_id", Int32),
    ("log_end_offset", Int64),
    ("last_fetch_timestamp", Int64),
    ("last_caught_up_timestamp", Int64),
    ("tags", TaggedFields),
)


class _QuorumResponse(Response):  # type: ignore[misc]  # aiokafka has no types for mypy here
    API_KEY = ApiKey.DESCRIBE_QUORUM
    API_VERSION = 1
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic_name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("high_watermark", Int64),
                        ("current_voters", CompactArray(*_REPLICA)),
                        ("observers", CompactArray(*_REPLICA)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _QuorumStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = ApiKey.DESCRIBE_QUORUM
    API_VERSION = 1
    RESPONSE_TYPE = _QuorumResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_name", CompactString("utf-8")),
                ("partitions", CompactArray(("partition_index", Int32), ("tags", TaggedFields))),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeQuorum(Request[_QuorumStruct]):  # type: ignore[misc]
    """Request for the replicas of the quorum, as its leader knows them."""

    API_KEY = ApiKey.DESCRIBE_QUORUM

    def build(self, struct: Any) -> Any:
        return struct([(_METADATA_TOPIC, [(0, {})], {})], {})


class _ProducersResponse(Response):  # type: ignore[misc]
    API_KEY = ApiKey.DESCRIBE_PRODUCERS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "active_producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("current_txn_start_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _ProducersStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = ApiKey.DESCRIBE_PRODUCERS
    API_VERSION = 0
    RESPONSE_TYPE = _ProducersResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partition_indexes", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducers(Request[_ProducersStruct]):  # type: ignore[misc]
    """Request for the producers of partitions, with their open Kafka transactions."""

    API_KEY = ApiKey.DESCRIBE_PRODUCERS

    def __init__(self, topics: Mapping[str, Sequence[int]]) -> None:
        self._topics = topics

    def build(self, struct: Any) -> Any:
        return struct([(topic, list(partitions), {}) for topic, partitions in self._topics.items()], {})


class _TransactionsResponse(Response):  # type: ignore[misc]
    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transaction_states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TransactionsStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    RESPONSE_TYPE = _TransactionsResponse
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class DescribeTransactions(Request[_TransactionsStruct]):  # type: ignore[misc]
    """Request for the state of transactional ids at their coordinator."""

    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS

    def __init__(self, transactional_ids: Sequence[str]) -> None:
        self._ids = transactional_ids

    def build(self, struct: Any) -> Any:
        return struct(list(self._ids), {})
