"""Metrics of the door, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Seconds; Kafka acknowledges in milliseconds, and a SEND fails after three seconds.
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class DoorMetrics:
    """Metrics of a door, changed in the event loop only. Any thread may read the registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.connections = Gauge(
            "txbridge_rocketmq_connections", "Open connections of clients.", registry=self.registry
        )
        self.streams = Gauge(
            "txbridge_rocketmq_streams", "Open telemetry streams of gRPC clients.", registry=self.registry
        )
        self.groups = Gauge(
            "txbridge_rocketmq_groups", "Producer groups whose checks this door reads.", registry=self.registry
        )
        self.requests = Counter(
            "txbridge_rocketmq_requests",
            "Requests, by RocketMQ's name of the request and of the answer.",
            ["request", "response"],
            registry=self.registry,
        )
        self.sends = Histogram(
            "txbridge_rocketmq_send_seconds",
            "From a SEND that was read to its acknowledgement by Kafka.",
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.checks = Counter(
            "txbridge_rocketmq_checks",
            "Checks: sent to a client, not sent, answered by the door, or not of this door (not_ours).",
            ["result"],
            registry=self.registry,
        )
        self.closed = Counter(
            "txbridge_rocketmq_connections_closed",
            "Connections that the door closed, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.traces_dropped = Counter(
            "txbridge_rocketmq_traces_dropped",
            "Messages with traces of clients, whose topic does not exist.",
            registry=self.registry,
        )
        self.equal_ids = Counter(
            "txbridge_rocketmq_equal_ids",
            "Transactional and delayed messages with the id of another message: some clients make equal ids.",
            registry=self.registry,
        )
        self.ends_lost = Counter(
            "txbridge_rocketmq_ends_not_acknowledged",
            "Decisions that Kafka did not acknowledge; the worker asks again.",
            registry=self.registry,
        )
