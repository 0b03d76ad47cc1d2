"""Reasons to refuse a take-over: topics and logs that are not the ones that the checkpoint was written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.kafka.failures import LogGoneError, TakeOverRefusedError
from txbridge.kafka.log_ends import LogEnds
from txbridge.text import counted

#: Log start and end, by the short name of the topic.
Bounds = Mapping[str, tuple[int, int]]


def refuse_other_topics(
    names: Names,
    partition: int,
    checkpoint: Checkpoint,
    half_read: int,
    ids: Mapping[str, str],
    bounds: Bounds,
) -> None:
    """Refuse topics that were recreated, or that have lost needed records. Nothing else would reveal it."""
    topics = names.identified
    for short, topic in topics.items():
        if checkpoint.topics.get(short, ids[short]) != ids[short]:
            raise TakeOverRefusedError(
                f"{topic} is not the topic that the checkpoint of partition {partition} was written for (topic id "
                f"{ids[short]}, not {checkpoint.topics[short]}): it was deleted and created again. Use a new namespace",
            )
    for short, wanted in (("half", checkpoint.half), ("end", checkpoint.end), ("op", checkpoint.op)):
        low, _ = bounds[short]
        # OP names half messages. With none read at or above the watermark, none of its records is needed.
        needed = short != "op" or half_read > checkpoint.half
        if wanted < low and needed:
            raise TakeOverRefusedError(
                f"{topics[short]}[{partition}] begins at offset {low}, above offset {wanted} that is still needed: "
                f"retention has deleted undecided messages or decisions. Their retention must outlast every outage",
            )


def refuse_cut(ends: LogEnds, topic: str, partition: int, wanted: int, wait_to_ask_again: Callable[[], None]) -> None:
    """Refuse a log that was cut: every answer says that it ends below `wanted`, which was reached before."""
    try:
        while ends.end_from(topic, partition, wanted) is None:
            wait_to_ask_again()
    except LogGoneError as error:
        raise TakeOverRefusedError(
            f"{error}: the log was cut. Restore it, or acknowledge the loss with `txbridge acknowledge {partition}`",
        ) from None


def refuse_lost(lost: Mapping[str, str]) -> None:
    """Refuse a partition with a lost tail until a person has acknowledged the loss. A worker's writes would hide it."""
    if lost:
        raise TakeOverRefusedError("; ".join(lost.values()))


def refuse_parked_beyond(names: Names, partition: int, offset_topic: OffsetTopic, half_read: int) -> None:
    """Refuse parked entries of half messages that nobody has read, which cannot be open.

    Otherwise the next message at that offset would be taken for the parked one.
    """
    last = max(offset_topic.parked, default=-1)
    if last >= half_read:
        raise TakeOverRefusedError(
            f"{names.offset}[{partition}] holds a parked entry of half offset {last}, and {names.half}[{partition}] "
            f"was read up to offset {half_read} only: a stranger wrote the entry. Remove it: write a record with its "
            f"key, header TXB_V=1 and no value",
        )


def refuse_lost_ops(names: Names, partition: int, checkpoint: Checkpoint, count: int) -> NoReturn:
    raise TakeOverRefusedError(
        f"{names.op}[{partition}] has {counted(count, 'record')} from offset {checkpoint.op} on, and workers have "
        f"written {checkpoint.ops}: the log was cut. Restore it, or use a new namespace",
    )


def refuse_newer(topic: str, partition: int, offset: int, error: str) -> NoReturn:
    """Refuse a record of a later release, because this one cannot read it.

    Without its content messages would be delivered twice, or checked although they are decided.
    """
    raise TakeOverRefusedError(
        f"{topic}[{partition}] offset {offset} was written by a later release of txbridge: {error}. Let workers of "
        f"that release serve this partition; this one does not guess",
    )
