"""Bodies of the messages that a draft copies, and a substitute for a body that is gone."""

from __future__ import annotations

from typing import Any

from txbridge.core import names
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, half_headers
from txbridge.core.plan.draft import Draft
from txbridge.kafka.body_cache import BodyCache
from txbridge.worker.gates.topic_health import TopicHealth

#: Reasons to hold a commit without a body.
_GONE = "retention has deleted its half message from HALF"
_ANOTHER = "another message stands at its offset in HALF: the log has lost its tail and has grown again"


def load_bodies(draft: Draft, cache: BodyCache, topics: TopicHealth) -> dict[int, HalfMessage] | None:
    """Bodies of all messages that the draft copies, by half offset. None when a delivery has to be held.

    `draft.now` is taken for the clock of the brokers that check timestamps.
    """
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
        half = bodies.get(entry.offset)
        if half is None:
            why: str | None = _GONE if entry in gone else _ANOTHER
        else:
            why = _why_not(half, topics, draft)
        if why is not None:
            topics.note_refusal(entry.topics[0], entry.offset, why)
            undeliverable = True
    if undeliverable:
        return None
    bodies.update((entry.offset, _without_body(entry)) for entry in (*gone, *others))
    return bodies


def _why_not(half: HalfMessage, topics: TopicHealth, draft: Draft) -> str | None:
    """Reason why a topic of what the draft delivers does not take it, as far as that is known beforehand, or None."""
    now = draft.now
    if half.messages is None:
        why = None if half.real_partition is None else topics.problem_of_partition(half.real_topic, half.real_partition)
        return why or topics.refusal_of(half.real_topic, half.key, half.delivered_timestamp, now)
    if not half.names_partitions and topics.are_lenient(names.topics_of(half.real_topic)):
        return None
    messages, part = half.framed, draft.due_parts.get(half.offset)
    for one in messages if part is None else [messages[index] for index in sorted(part.indices_in(messages))]:
        why = None if one.partition is None else topics.problem_of_partition(one.topic, one.partition)
        why = why or topics.refusal_of(one.topic, one.key, half.born if one.timestamp is None else one.timestamp, now)
        if why is not None:
            return why
    return None


def _is_of(entry: HalfEntry, half: HalfMessage) -> bool:
    """Whether the half message belongs to the transaction of the entry."""
    if (half.transaction_id, half.group) != (entry.transaction_id, entry.group):
        return False
    # Of messages with different times, an entry to be delivered has the topics of those that are due.
    return half.real_topic == entry.real_topic or (
        entry.is_timed and {*entry.topics} <= {*names.topics_of(half.real_topic)}
    )


def _without_body(entry: HalfEntry) -> HalfMessage:
    """A substitute for a half message that is gone from HALF, so that its discard record can still be written."""
    same: dict[str, Any] = {
        "transaction_id": entry.transaction_id,
        "group": entry.group,
        "real_topic": entry.real_topic,
    }
    headers = half_headers((), **same)
    return HalfMessage.of(
        **same,
        offset=entry.offset,
        born=entry.born,
        headers=[*headers, (names.ERROR, b"HALF no longer has the half message")],
    )
