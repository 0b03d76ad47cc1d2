"""The half messages of other namespaces that visible records claim. What this costs depends on the claims alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from txbridge.core.names import Names, delivered_id
from txbridge_audit.cluster.cuts import Range, ranges
from txbridge_audit.cluster.kafka_admin import partitions_of
from txbridge_audit.cluster.reader import read
from txbridge_audit.engines.gather import AuditedTopics, Spans
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.judge.strays import OtherNamespaces
from txbridge_audit.protocol import client_records
from txbridge_audit.protocol.mentions import CopyMention, EndMention
from txbridge_audit.protocol.record import KafkaRecord, records_of

#: Parts of HALF that are read apart. A part costs a new consumer: as much as so many records between two claims.
_PARTS, _ALONG = 8, 4_000
#: Claims that are looked for in the text of END. A pattern of more costs more than decoding.
_SOUGHT = 500


def other_namespaces(source: AuditedTopics, strays: Iterable[CopyMention], facts: Facts) -> OtherNamespaces:
    """The half messages of other namespaces at the half coordinates that strays claim."""
    claims = {(copy.partition, copy.half, copy.id) for copy in strays if copy.half is not None}
    claimed = {(partition, half) for partition, half, _ in claims}
    base = Names().half
    counts = source.cluster.partition_counts() if claimed else {}
    topics = [name for name in counts if name == base or name.endswith(f".{base}")]
    others = {name: Names(name.removesuffix(base).removesuffix(".")) for name in topics if name != source.names.half}
    keys = [key for name in others for key in partitions_of(name, counts[name])]
    if not keys:
        return OtherNamespaces()
    starts, ends = source.cluster.log_starts(keys), source.cluster.high_watermarks(keys)

    def is_claimed(batch: Any) -> Any:
        places = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        return pa.array([place in claimed for place in places], pa.bool_())

    partitions = {partition for partition, _ in claimed}
    parts = {partition: parts_of(sorted(half for p, half in claimed if p == partition)) for partition in partitions}
    spans: list[dict[TopicPartition, Range]] = [{} for _ in range(_PARTS)]
    for key in keys:
        for some, part in zip(spans, parts.get(key[1], ()), strict=False):
            some[key] = Range(max(starts[key], part.start), min(ends[key], part.end))
    mentions = map(client_records.half_mention, _found(source, spans, is_claimed))
    halves = {(half.partition, half.half, half.delivered_id) for half in mentions if half.delivered_id is not None}
    # Their ENDs tell of half messages that are gone. What our own HALF has lost needs no other explanation.
    lost = {partition: max(starts[key] for key in keys if key[1] == partition) for _, partition in keys}
    open_ones = {
        (partition, half)
        for partition, half, _ in claims - halves
        if facts.half(partition).log_start <= half < lost.get(partition, 0)
    }
    asked = {partition for partition, _ in open_ones}
    end_of = {key: (others[key[0]].end, key[1]) for key in keys if starts[key] > 0 and key[1] in asked}
    ends_there = [key for key in end_of.values() if key[1] < counts.get(key[0], 0)]
    end_starts, end_ends = source.cluster.log_starts(ends_there), source.cluster.stable_offsets(ends_there)
    edges: dict[int, int] = {}
    for key, end in end_of.items():
        if end_starts.get(end, 1) > 0:
            edges[key[1]] = max(starts[key], edges.get(key[1], 0))
    sought = "|".join({str(half) for _, half in open_ones})

    def may_name(batch: Any) -> Any:
        pattern = f"(?m)^0*(?:{sought})," if len(open_ones) <= _SOUGHT else ""
        return pc.match_substring_regex(batch.column("value"), pattern).fill_null(False)

    named = {
        (end.partition, end.half, identity)
        for record in _found(source, [ranges(end_starts, end_ends)], may_name, committed=True)
        for end in client_records.end_mentions(record)
        if isinstance(end, EndMention) and end.half is not None and (end.partition, end.half) in open_ones
        # END does not say whether its messages had times.
        for identity in (end.id, delivered_id(end.id))
    }
    return OtherNamespaces(halves, named, edges)


def _found(
    source: AuditedTopics, parts: Iterable[Spans], choose: Callable[[Any], Any], *, committed: bool = False
) -> Iterator[KafkaRecord]:
    """The records of the parts that are chosen."""
    batches = (batch for spans in parts for batch in read(source.settings, spans, committed=committed))
    return records_of(batch.filter(choose(batch)) for batch in batches)


def parts_of(halves: Sequence[int]) -> list[Range]:
    """The offsets, which are sorted, in at most _PARTS ranges: split at the largest gaps."""
    gaps = sorted((after - before, after) for before, after in pairwise(halves) if after - before > _ALONG)
    begins = [halves[0], *sorted(after for _, after in gaps[1 - _PARTS :])]
    ends = [*(halves[halves.index(begin) - 1] for begin in begins[1:]), halves[-1]]
    return [Range(begin, end + 1) for begin, end in zip(begins, ends, strict=True)]
