"""The settings and connections that all partitions of a worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.core.transaction_size import Limits
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.proven_end import EachBroker
from txbridge.worker.gates.topic_lookup import TopicMemory
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.observe.no_longer_held import NoLongerHeld
from txbridge.worker.slots import PartitionSlots


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """Settings and connections that all partitions of a worker share."""

    kafka: Mapping[str, Any] = field(repr=False)
    admin: AdminClient
    #: Requests about topics while the worker runs.
    requests: ControllerRequests
    membership: GroupMembership
    #: Connections to each broker, to learn and to prove where logs end.
    brokers: EachBroker
    #: Says where the logs of all partitions end.
    ends: LogEnds
    names: Names
    policy: CheckPolicy
    commit_timeout_ms: int
    payload_memory: int
    check_rate: int
    #: Least time from the begin of one Kafka transaction of a partition to that of the next, while nothing is urgent.
    commit_interval_ms: int = 0
    #: The upper limits of one Kafka transaction.
    largest: Limits = field(default_factory=Limits)
    #: The END offset of a partition that Faust reads next; None while it is not known.
    next_event: Callable[[int], int | None] = lambda _: None
    outside: Outside = OUTSIDE
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    no_longer_held: NoLongerHeld = field(default_factory=NoLongerHeld)
    topic_memory: TopicMemory = field(default_factory=TopicMemory)
    slots: PartitionSlots = field(default_factory=PartitionSlots)
