"""TopicRules: the records that a topic refuses by its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import ConfigResource, ResourceType

from txbridge.text import counted, duration

LARGEST_BATCH = "max.message.bytes"
#: Reason to refuse a record for its size. No reason names a number of the record itself: messages that are held for one
#: reason are counted, listed and acted on together, by its text.
TOO_LARGE = f"the message is too large ({LARGEST_BATCH})"
#: Bytes of a batch with a transaction marker (61 of the batch, 17 of its record). Kafka writes the marker under the
#: limit of the topic. Where it does not fit, no Kafka transaction of the topic's partition ever ends.
MARKER_BATCH = 78
#: Kafka's default of message.timestamp.before.max.ms: no limit. So is anything near it.
_NO_LIMIT_MS = 2**62


def config_resource(topic: str) -> ConfigResource:
    """The name of a topic's configuration in a request."""
    return ConfigResource(ResourceType.TOPIC, topic)


class TopicRules(NamedTuple):
    """The rules of one topic. A field that is None sets no limit, or is not known."""

    #: Bytes of a batch, compressed.
    largest_batch: int | None = None
    #: Milliseconds by which a record's timestamp may be ahead of the leader's clock, and behind it.
    ahead_ms: int | None = None
    behind_ms: int | None = None
    #: Whether records without a key are refused.
    wants_keys: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The rules in the answer to a DescribeConfigs request: entries with a `value`, by name."""
        text = {name: str(entry.value) for name, entry in config.items()}
        is_users_time = text.get("message.timestamp.type") != "LogAppendTime"
        return cls(
            _number(text.get(LARGEST_BATCH)),
            _number(text.get("message.timestamp.after.max.ms")) if is_users_time else None,
            _number(text.get("message.timestamp.before.max.ms")) if is_users_time else None,
            "compact" in text.get("cleanup.policy", ""),
        )

    @property
    def problem(self) -> str | None:
        """Reason why nothing may be written to the topic in a Kafka transaction, or None."""
        return None if self.largest_batch is None else marker_problem(self.largest_batch)

    def refusal_of_time(self, timestamp: int, now: int) -> str | None:
        """Reason to refuse a record with this timestamp (ms) when the leader's clock shows `now` (ms), or None."""
        ahead = timestamp - now
        if self.ahead_ms is not None and ahead > self.ahead_ms:
            return _too_far("ahead", self.ahead_ms, "after")
        if self.behind_ms is not None and -ahead > self.behind_ms:
            return _too_far("behind", self.behind_ms, "before")
        return None

    def refusal_of(self, key: bytes | None, timestamp: int, now: int) -> str | None:
        """Reason to refuse a record with this key and timestamp, whatever its size, or None."""
        if key is None and self.wants_keys:
            return "it has no key, and the topic is compacted (cleanup.policy)"
        return self.refusal_of_time(timestamp, now)


def marker_problem(largest_batch: int) -> str | None:
    """Reason why a topic with this max.message.bytes takes no Kafka transaction, or None."""
    if largest_batch >= MARKER_BATCH:
        return None
    return (
        f"{LARGEST_BATCH} is {largest_batch}, and Kafka's own transaction marker takes {MARKER_BATCH} bytes: raise it"
    )


def partition_problem(topic: str, partitions: int, partition: int) -> str | None:
    """Reason why nothing can be written to this partition of a topic with so many, or None."""
    if partition < partitions:
        return None
    return f"topic {topic} has {counted(partitions, 'partition')}, so no partition {partition}"


def _too_far(direction: str, most: int, which: str) -> str:
    return f"its timestamp is more than {duration(most)} {direction} (message.timestamp.{which}.max.ms)"


def _number(text: str | None) -> int | None:
    if text is None or not text.lstrip("-").isdecimal():
        return None
    return int(text) if int(text) < _NO_LIMIT_MS else None
