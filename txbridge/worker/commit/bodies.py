"""Bodies of the messages that a draft copies, and a substitute for a body that is gone."""

from __future__ import annotations

from txbridge.core import names as header_names
from txbridge.core.draft import Draft
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, half_headers
from txbridge.kafka.body_cache import BodyCache
from txbridge.worker.gates.topic_health import TopicHealth

#: Reasons to hold a commit without a body.
_GONE = "its half message is gone from HALF: retention has eaten it"
_ANOTHER = "another message stands at its offset in HALF: the log has lost its tail and has grown again"


def load_bodies(draft: Draft, cache: BodyCache, topics: TopicHealth) -> dict[int, HalfMessage] | None:
    """Bodies of all messages that the draft copies, by half offset. None when a delivery has to be held."""
    entries = [*draft.deliver, *draft.checks, *draft.discards, *(one.entry for one in draft.abandoned)]
    if not entries:
        return {}
    bodies = cache.load(entry.offset for entry in entries)
    gone = [entry for entry in entries if entry.offset not in bodies]
    others = [entry for entry in entries if entry.offset in bodies and not _is_of(entry, bodies[entry.offset])]
    for entry in others:
        # The log has lost its tail and grown again: another transaction's message stands there.
        del bodies[entry.offset]
    undeliverable = False
    for entry in draft.deliver:
        half, why, topic = bodies.get(entry.offset), None, entry.topics[0]
        if half is None:
            why = _GONE if entry in gone else _ANOTHER
        elif half.messages is not None:
            for message in half.framed if half.names_partitions else ():
                if message.partition is not None and why is None:
                    topic = message.topic
                    why = topics.problem_of_partition(topic, message.partition)
        elif half.real_partition is not None:
            why = topics.problem_of_partition(half.real_topic, half.real_partition)
        if why is not None:
            topics.refuse(entry, why, topic=topic)
            undeliverable = True
    if undeliverable:
        return None
    bodies.update((entry.offset, _without_body(entry)) for entry in (*gone, *others))
    return bodies


def _is_of(entry: HalfEntry, half: HalfMessage) -> bool:
    """Whether the half message belongs to the transaction of the entry."""
    expected = entry.transaction_id, entry.group, entry.real_topic
    return (half.transaction_id, half.group, half.real_topic) == expected


def _without_body(entry: HalfEntry) -> HalfMessage:
    """A substitute for a half message that is gone from HALF, so that its discard record can still be written."""
    headers = half_headers(
        (),
        transaction_id=entry.transaction_id,
        group=entry.group,
        real_topic=entry.real_topic,
    )
    return HalfMessage(
        offset=entry.offset,
        transaction_id=entry.transaction_id,
        group=entry.group,
        real_topic=entry.real_topic,
        born=entry.born,
        key=None,
        value=None,
        headers=[*headers, (header_names.ERROR, b"the half message is gone from the log")],
    )
