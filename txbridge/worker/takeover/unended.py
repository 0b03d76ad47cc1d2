"""Why Kafka does not end the last transaction of a partition: topics that have no room for its marker.

Kafka says only that it has not ended. So the topics are looked at that it can have written to: those of the last half
messages and our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress

from confluent_kafka import KafkaException

from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import topics_of
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.kafka.body_cache import to_half
from txbridge.kafka.topic_rules import LARGEST_BATCH, MARKER_BATCH
from txbridge.worker.gates.topic_lookup import TopicMemory
from txbridge.worker.partition_context import PartitionContext
from txbridge.worker.takeover.state_reader import StateReader

#: Half messages that are read, and the time limit (s) for them and for a request. Nothing is served meanwhile.
_MOST_HALF, _LOOK_S = 10_000, 5.0
#: Most topics that are named.
_MOST_NAMED = 10


def why_unended(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> str:
    """The topics at fault, as far as they are known, and the remedy."""
    names, suspects = context.names, context.topic_memory.too_large
    topics, found = {names.op, names.offset, names.discard, *suspects}, {}
    # Where Kafka does not answer, less is named, and the next attempt looks again.
    with suppress(KafkaException, TimeoutError, TxBridgeError):
        topics.update(_topics_in_half(context, partition, stopping))
    with suppress(TxBridgeError):
        found = TopicMemory().look_up(context.requests, topics, 0.0)
    named = [f"topic {topic}: {why}" for topic, one in sorted(found.items()) if (why := one.rules.problem) is not None]
    hidden = {topic for topic, one in found.items() if one.partitions and one.rules.largest_batch is None}
    if hidden and not named:
        which = ", ".join(sorted(hidden & suspects or hidden)[:_MOST_NAMED])
        named = [f"raise {LARGEST_BATCH} if it is below {MARKER_BATCH}, of {which}"]
    if named:
        named = [*named[:_MOST_NAMED], "then restart its coordinator"]
    why = f"Kafka does not end the last transaction of {names.transactional_id(partition)}"
    return "; ".join([why, *named, 'see "A hanging Kafka transaction" in docs/incidents.md'])


def _topics_in_half(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> Iterator[str]:
    """Real topics and check topics of the last half messages. Raises KafkaException, TxBridgeError."""
    names, deadline = context.names, Deadline(_LOOK_S, context.outside.monotonic)
    with closing(StateReader(context, partition, stopping).open_reader(names.half, committed=False)) as half:
        start, end = half.watermarks()
        half.start(max(start, end - _MOST_HALF))
        for message in half.read_below(end, lambda: stopping() or deadline.is_over):
            with suppress(MalformedRecordError):
                one = to_half(message, names)
                yield from (*topics_of(one.real_topic), names.check(one.group))
