"""Log lines about the effects of a committed Kafka transaction, one line for each kind of event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from txbridge.core.decision_record import Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.names import short_id
from txbridge.log import get_logger
from txbridge.worker.transaction.writer import Contents

#: Most lines of one event for one Kafka transaction. All further cases share one more line.
_MOST_LINES = 10
_OTHERS = object()

_Item = TypeVar("_Item")
_log = get_logger("txbridge.worker")


def log_effects(contents: Contents, partition: int) -> None:
    """Log the effects that an operator needs to know. Nothing is logged when all is well."""
    draft = contents.draft
    for entry, count in _first_of_each(draft.held, lambda entry: (entry.real_topic, entry.error)):
        _log.warning("held", **log_fields(partition, entry), count=count, error=entry.error)
    for entry, count in _first_of_each(draft.discards, lambda entry: (entry.group, entry.reason)):
        _log.warning("discarded", **log_fields(partition, entry), count=count, reason=entry.reason)
    for entry, count in _first_of_each(draft.resumed, lambda entry: entry.group):
        _log.info("resumed", **log_fields(partition, entry), count=count)
    cancelled = (one for one in draft.abandoned if one.source is Source.CANCEL)
    for one, count in _first_of_each(cancelled, lambda one: one.entry.group):
        _log.info("cancelled", **log_fields(partition, one.entry), count=count, reason=one.reason)
    for one in draft.abandoned:
        # One line for each: the operator and the reason are its own.
        if one.source is Source.ABANDON:
            told = {"operator": one.operator, "reason": one.reason, "error": one.entry.error}
            _log.warning("abandoned", **log_fields(partition, one.entry), **told)
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
    """Yield the first item of each kind, and the number of its items.

    After _MOST_LINES kinds all others count as one kind: clients can invent thousands of groups and topics.
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
