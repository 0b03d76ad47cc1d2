"""A turn: which of the END records that wait go into the next Kafka transaction, whole or in part."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from txbridge.core.batch import Batch, Part
from txbridge.core.discard_record import MalformedRecord
from txbridge.core.end_record import EndRecord
from txbridge.core.half_queue import HalfQueue
from txbridge.kafka.failures import LogGoneError
from txbridge.worker.ingest.end_log import Waiting


@dataclass(slots=True)
class Turn:
    """What of END goes into the next Kafka transaction."""

    #: END offset below which all is applied then.
    end: int
    parts: list[Part | MalformedRecord] = field(default_factory=list)
    #: Real topics of the commits.
    topics: AbstractSet[str] = frozenset()


def next_turn(batch: Batch, waiting: Waiting, end_position: int, most_aside: int, ready: int | None = None) -> Turn:
    """As much of what waits as the batch has room for, `most_aside` malformed records among it.

    `end_position` is the END offset behind the last of `waiting`; only the first `ready` of them may be taken.
    """
    turn = Turn(end_position, topics=batch.topics)
    for number, record in enumerate(waiting):
        if number == ready:
            turn.end = record.offset
            break
        if isinstance(record, EndRecord):
            part = batch.take(record)
            is_whole = part.stop == len(record.entries)
            if part.stop > part.start:
                turn.parts.append(part)
        else:
            is_whole = most_aside > 0 and batch.take_whole(len(record.value or b""))
            if is_whole:
                turn.parts.append(record)
                most_aside -= 1
        if not is_whole:
            turn.end = record.offset
            break
    return turn


def first_entries(queue: HalfQueue, waiting: Waiting, limit: int) -> Sequence[EndRecord | MalformedRecord]:
    """The records of all entries that the next Kafka transaction may hold: so many."""
    first: list[EndRecord | MalformedRecord] = []
    # Those that are applied already are not among them.
    entries = -queue.next_entry
    for record in waiting:
        if entries >= limit:
            break
        entries += len(record.entries) if isinstance(record, EndRecord) else 1
        first.append(record)
    return first


def require_the_rest(queue: HalfQueue, waiting: Waiting, where: str) -> None:
    """Raise LogGoneError when the END record that is applied in part is not the one that it was."""
    if not (queue.next_entry and waiting):
        return
    first = waiting[0]
    count = len(first.entries) if isinstance(first, EndRecord) else 0
    if first.offset != queue.next_end or count <= queue.next_entry:
        raise LogGoneError(
            f"{where} offset {queue.next_end} holds another record than the one of which {queue.next_entry} entries "
            f"are applied: the log was cut, or deleted and created anew",
        )
