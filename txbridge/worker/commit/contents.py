"""The contents of one Kafka transaction, and the receipt that tells where its records landed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.discard_record import MalformedRecord
from txbridge.core.draft import Draft
from txbridge.core.half_message import HalfMessage
from txbridge.kafka.failures import RecordName


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
