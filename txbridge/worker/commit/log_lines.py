"""Log lines about what a committed Kafka transaction did: one for each kind of event, however many it concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from txbridge.core.half_entry import HalfEntry
from txbridge.core.names import short_id
from txbridge.log import get_logger
from txbridge.worker.commit.records import Contents

#: Lines of one kind of event that one Kafka transaction logs, but for one more.
_MOST_LINES = 10
_OTHERS = object()

_Item = TypeVar("_Item")
_log = get_logger("txbridge.worker")


def log_effects(contents: Contents, partition: int) -> None:
    """Quiet when all is well: what is logged is what somebody will want to know."""
    draft = contents.draft
    for entry, count in _first_of_each(draft.held, lambda entry: (entry.real_topic, entry.error)):
        _log.warning("held", **log_fields(partition, entry), count=count, error=entry.error)
    for entry, count in _first_of_each(draft.discards, lambda entry: (entry.group, entry.reason)):
        _log.warning("discarded", **log_fields(partition, entry), count=count, reason=entry.reason)
    for entry, count in _first_of_each(draft.resumed, lambda entry: entry.group):
        _log.info("resumed", **log_fields(partition, entry), count=count)
    for abandoned in draft.abandoned:
        # One by one, as they were given up.
        _log.warning(
            "abandoned",
            **log_fields(partition, abandoned.entry),
            operator=abandoned.operator,
            reason=abandoned.reason,
            error=abandoned.entry.error,
        )
    for refusal, count in _first_of_each(draft.refused, lambda refusal: refusal.reason):
        _log.warning(
            "end_refused",
            partition=partition,
            reason=refusal.reason.value,
            count=count,
            end_offset=refusal.end_offset,
            half_offset=refusal.entry.half_offset,
            source=refusal.source.value,
        )
    for record, count in _first_of_each(contents.malformed, lambda record: (record.topic, record.copy_of is None)):
        _log.warning(
            "malformed_records",
            topic=record.topic,
            partition=partition,
            offset=record.offset,
            count=count,
            error=record.error,
        )


def _first_of_each(items: Iterable[_Item], kind: Callable[[_Item], object]) -> Iterator[tuple[_Item, int]]:
    """The first item of each kind, and how many there are: one line in the log, however many it concerns.

    After some kinds all others share a line: groups and topics can be invented by the thousand.
    """
    kinds: dict[object, list[_Item]] = {}
    for item in items:
        name = kind(item)
        kinds.setdefault(name if name in kinds or len(kinds) < _MOST_LINES else _OTHERS, []).append(item)
    for found in kinds.values():
        yield found[0], len(found)


def log_fields(partition: int, entry: HalfEntry) -> dict[str, object]:
    return {
        "partition": partition,
        "half_offset": entry.offset,
        "transaction_id": short_id(entry.transaction_id),
        "group": entry.group,
        "topic": entry.real_topic,
    }
