"""The contents of one Kafka transaction, bodies included, and the receipt that tells where its records landed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from txbridge.core import names as header_names
from txbridge.core.checkpoint import Checkpoint
from txbridge.core.discard_record import MalformedRecord
from txbridge.core.draft import Draft
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, half_headers
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.failures import RecordName
from txbridge.worker.gates.topic_health import TopicHealth

#: Why a commit is held that has no body.
_GONE = "its half message is gone from HALF: retention has eaten it"
_ANOTHER = "another message stands at its offset in HALF: the log has lost its tail and has grown again"


@dataclass(slots=True)
class Receipt:
    """Where the records of a committed transaction landed."""

    #: OP offset and the half offsets named there.
    ops: list[tuple[int, list[int]]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    checkpoint_offset: int = -1
    #: OFFSET offset of the next record of ours, when it was learnt by reading.
    offset_topic_end: int | None = None
    #: Told the append time (ms) of the checkpoint, as soon as it is known, whatever becomes of the transaction.
    appended: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Contents:
    """All that one Kafka transaction writes."""

    draft: Draft
    #: Of the messages that are delivered, checked and discarded.
    bodies: Mapping[int, HalfMessage]
    malformed: Sequence[MalformedRecord]
    checkpoint: Checkpoint
    #: Bytes of a topic's records that may go together; topics that never refused a batch are not in here.
    limits: Mapping[str, int]
    #: Records that the discard topic takes without key and value only.
    bodiless: AbstractSet[RecordName]
    #: Whether the fate of each delivered record is to be told, or only that of all of them together.
    named: bool = False
    #: OFFSET offset at which the first record has to land, because it was read up to there.
    offset_topic_end: int | None = None


def load_bodies(draft: Draft, cache: BodyCache, topics: TopicHealth) -> dict[int, HalfMessage] | None:
    """Bodies of all messages that the draft copies; None when a delivery has to be held for want of one."""
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
        half, why = bodies.get(entry.offset), None
        if half is None:
            why = _GONE if entry in gone else _ANOTHER
        elif half.real_partition is not None:
            why = topics.problem_of_partition(half.real_topic, half.real_partition)
        if why is not None:
            topics.refuse(entry, why)
            undeliverable = True
    if undeliverable:
        return None
    bodies.update((entry.offset, _without_body(entry)) for entry in (*gone, *others))
    return bodies


def _is_of(entry: HalfEntry, half: HalfMessage) -> bool:
    """Whether this is the message of that transaction."""
    expected = entry.transaction_id, entry.group, entry.real_topic
    return (half.transaction_id, half.group, half.real_topic) == expected


def _without_body(entry: HalfEntry) -> HalfMessage:
    """Stands for a half message that retention has eaten, so that its discard can still be told."""
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
