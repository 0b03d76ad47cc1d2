"""The internal topics as `txbridge topics` makes them, for values of a million bytes. Written by hand."""

from __future__ import annotations

from txbridge.kafka.admin import FoundTopic

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
END = "RMQ_SYS_TRANS_END_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
OFFSET = "RMQ_SYS_TRANS_OFFSET_TOPIC"
DISCARD = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK = "RMQ_SYS_TRANS_CHECK.orders"
OUTBOX = "RMQ_SYS_TRANS_OUTBOX_TOPIC"
ALL = (HALF, END, OP, OFFSET, DISCARD)

LOG = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": "1073741824",
    "segment.ms": "86400000",
    "unclean.leader.election.enable": "false",
}
RIGHT = {
    HALF: {**LOG, "max.message.bytes": "1065536", "compression.type": "uncompressed"},
    END: {**LOG, "max.message.bytes": "1048576", "compression.type": "uncompressed"},
    OP: {**LOG, "max.message.bytes": "1048576"},
    OFFSET: {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": "1048576",
        "segment.bytes": "16777216",
        "min.cleanable.dirty.ratio": "0.1",
        "min.compaction.lag.ms": "0",
        "delete.retention.ms": "86400000",
        "unclean.leader.election.enable": "false",
    },
    DISCARD: {**LOG, "retention.ms": "2592000000", "max.message.bytes": "1131072"},
    OUTBOX: {**LOG, "max.message.bytes": "1048576"},
    CHECK: {**LOG, "retention.ms": "3600000", "segment.ms": "600000", "max.message.bytes": "1131072"},
}


def facts(
    topic: str, partitions: int = 4, copies: int = 3, in_sync: str = "2", leaderless: int = 0, **config: str
) -> FoundTopic:
    """One of these topics, perhaps in a namespace, with some settings changed; underscores stand for dots."""
    kind = topic.removeprefix("ns.")
    changed = {name.replace("_", "."): value for name, value in config.items()}
    every = {**RIGHT[kind], "min.insync.replicas": in_sync, **changed}
    return FoundTopic(topic, f"id of {topic}", 1 if kind == DISCARD else partitions, copies, leaderless, every)
