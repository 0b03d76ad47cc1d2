"""Settings and metrics that all parts of a door use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from txbridge.client.message import MessageLimits
from txbridge.core.names import Names
from txbridge_rocketmq.access import AccessKeys


@dataclass(frozen=True, slots=True)
class DoorSetting:
    """Settings of a door, which do not change while it runs, but for the access keys in their file."""

    names: Names
    #: Partitions of HALF.
    partitions: int
    limits: MessageLimits
    secret: bytes = field(repr=False)
    #: Addresses of all doors, as clients of the remoting protocol reach them.
    addresses: tuple[str, ...]
    access: AccessKeys
    #: Returns the reason why nothing may be sent; empty if there is none.
    obstacle: Callable[[], str]


#: Seconds; Kafka acknowledges in milliseconds, and a SEND fails after three seconds.
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class DoorMetrics:
    """Metrics of a door, changed in the event loop only. Any thread may read the registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"txbridge_rocketmq_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"txbridge_rocketmq_{name}", text, labels, registry=registry)

        self.connections = gauge("connections", "Open connections of clients.")
        self.streams = gauge("streams", "Open telemetry streams of gRPC clients.")
        self.groups = gauge("groups", "Producer groups whose checks this door reads.")
        self.expiry = gauge("certificate_expiry_timestamp_seconds", "Until when the certificate is valid.", "file")
        self.requests = counter(
            "requests", "Requests, by RocketMQ's name of the request and of the answer.", "request", "response"
        )
        self.sends = Histogram(
            "txbridge_rocketmq_send_seconds",
            "From a SEND that was read to its acknowledgement by Kafka.",
            registry=registry,
            buckets=_BUCKETS,
        )
        self.checks = counter(
            "checks",
            "Checks: sent to a client, not sent, answered by the door, or not of this door (not_ours).",
            "result",
        )
        self.closed = counter("connections_closed", "Connections that the door closed, by reason.", "reason")
        self.traces_dropped = counter("traces_dropped", "Messages with traces of clients, whose topic does not exist.")
        self.equal_ids = counter(
            "equal_ids",
            "Transactional and delayed messages with the id of another message: some clients make equal ids.",
        )
        self.ends_lost = counter(
            "ends_not_acknowledged", "Decisions that Kafka did not acknowledge; the worker asks again."
        )
