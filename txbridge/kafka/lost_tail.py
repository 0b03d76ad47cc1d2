"""Detection of lost tails of HALF and END: a log may lose its last records, and grow again with other ones."""

from __future__ import annotations

from collections.abc import Mapping

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.fingerprint import Mark
from txbridge.core.names import Names
from txbridge.kafka.body_cache import mark_of, read_back
from txbridge.kafka.failures import LogGoneError
from txbridge.kafka.partition_reader import PartitionReader


def lost_tails(names: Names, checkpoint: Checkpoint, readers: Mapping[str, PartitionReader]) -> dict[str, str]:
    """Find logs that do not hold the last record that was read of them; returns texts by short name of the topic.

    `readers` read uncommitted records, by the same names; they are stopped. Raises TimeoutError, KafkaException.
    """
    found: dict[str, str] = {}
    for short, mark in sorted(checkpoint.marks.items()):
        why = _why_lost(readers[short], names, mark) if short in readers else None
        if why is not None:
            found[short] = why
    return found


def _why_lost(reader: PartitionReader, names: Names, mark: Mark) -> str | None:
    where = f"{reader.topic}[{reader.partition}]"
    advice = (
        f"Its tail was lost (an unclean leader election, or a disk that did not keep what was acknowledged). Restore "
        f"it, or acknowledge the loss with `txbridge acknowledge {reader.partition}`"
    )
    try:
        reader.wait_for_end(mark.offset + 1)
        messages = list(read_back(reader, [mark.offset]))
    except LogGoneError:
        return f"{where} ends below offset {mark.offset}, which was read already. {advice}"
    if not messages:
        if reader.watermarks()[0] > mark.offset:
            # Retention has deleted it: the records behind it were appended after it.
            return None
        return f"{where} has no record at offset {mark.offset}, where one was read. {advice}"
    if mark_of(messages[0], names).digest == mark.digest:
        return None
    return f"{where} holds another record at offset {mark.offset} than the one that was read there. {advice}"
