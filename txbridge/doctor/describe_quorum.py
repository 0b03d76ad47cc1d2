"""DescribeQuorum v1, which neither of our Kafka clients has. The schema is that of Kafka's message definition."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

_API_KEY, _VERSION = 55, 1
_TAGS = ("tags", TaggedFields)
_REPLICAS = CompactArray(
    ("replica_id", Int32),
    ("log_end_offset", Int64),
    ("last_fetch_timestamp", Int64),
    ("last_caught_up_timestamp", Int64),
    _TAGS,
)
_PARTITIONS = CompactArray(
    ("partition_index", Int32),
    ("error_code", Int16),
    ("leader_id", Int32),
    ("leader_epoch", Int32),
    ("high_watermark", Int64),
    ("current_voters", _REPLICAS),
    ("observers", _REPLICAS),
    _TAGS,
)
_TOPIC = ("topic_name", CompactString("utf-8"))


class _QuorumResponse(Response):  # type: ignore[misc]  # aiokafka has no types for mypy here
    API_KEY = _API_KEY
    API_VERSION = _VERSION
    SCHEMA = Schema(
        ("error_code", Int16),
        ("topics", CompactArray(_TOPIC, ("partitions", _PARTITIONS), _TAGS)),
        _TAGS,
    )


class _QuorumStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = _API_KEY
    API_VERSION = _VERSION
    RESPONSE_TYPE = _QuorumResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(_TOPIC, ("partitions", CompactArray(("partition_index", Int32), _TAGS)), _TAGS),
        ),
        _TAGS,
    )


class DescribeQuorum(Request[_QuorumStruct]):  # type: ignore[misc]
    """Request for the replicas of the quorum, as its leader knows them."""

    API_KEY = _API_KEY

    def build(self, struct: Any) -> Any:
        return struct([("__cluster_metadata", [(0, {})], {})], {})
