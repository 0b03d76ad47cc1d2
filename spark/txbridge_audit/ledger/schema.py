"""The columns of the ledger in Arrow's types, and its files: Parquet, partitioned by the day of birth (UTC)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from txbridge_audit.ledger.rows import LedgerRow

_TIME = pa.timestamp("us", tz="UTC")
_PLACE = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_DECISION = pa.struct(
    [
        *(("end", pa.int64()), ("line", pa.int32()), ("at", _TIME), ("decision", pa.int32()), ("source", pa.string())),
        *(("client", pa.string()), ("group", pa.string()), ("check", pa.int64()), ("remark", pa.string())),
        ("ruling", pa.string()),
    ]
)
_DISCARD = pa.struct(
    [
        *(("at", _TIME), ("partition", pa.int32()), ("offset", pa.int64()), ("reason", pa.string())),
        *(("end", pa.int64()), ("checks", pa.int64())),
    ]
)
#: The columns. Those of notebook.TRANSACTIONS are made of them.
SCHEMA: Any = pa.schema(
    [
        *(("partition", pa.int32()), ("half", pa.int64()), ("transaction", pa.string()), ("id_sha256", pa.string())),
        *(("group", pa.string()), ("real_partition", pa.int32()), ("prepared_at", _TIME), ("fate", pa.string())),
        *(("pending_state", pa.string()), ("violations", pa.list_(pa.string())), ("findings", pa.list_(pa.string()))),
        *(("decision", pa.string()), ("decided_by", pa.string()), ("decided_at", _TIME), ("decided_end", pa.int64())),
        *(("prepare_to_decision_ms", pa.int64()), ("delivered_at", _TIME), ("decision_to_delivery_ms", pa.int64())),
        *(("entries", pa.int64()), ("decisions", pa.list_(_DECISION)), ("checks_sent", pa.int64())),
        *(("held_since", _TIME), ("held_ms", pa.int64()), ("held_why", pa.string()), ("copies", pa.int64())),
        *(("delivered", pa.list_(_PLACE)), ("op_commit_offset", pa.int64()), ("op_rollback_offset", pa.int64())),
        *(("op_discard_offset", pa.int64()), ("op_abandon_offset", pa.int64())),
        *(("messages", pa.int32()), ("next_at", _TIME)),
        *(("discard_records", pa.list_(_DISCARD)), ("resumed_end", pa.int64())),
        *(("real_topic", pa.string()), ("day", pa.date32())),
    ]
)
#: Rows of a batch.
_BATCH = 1_000
#: Batches that are kept until a file of each day is written: up to 100,000 rows.
_KEPT = 100


def batches_of(rows: Iterable[LedgerRow]) -> Iterator[Any]:
    """The rows as Arrow batches of these columns."""
    rest = iter(rows)
    while some := list(itertools.islice(rest, _BATCH)):
        yield from pa.Table.from_pylist(some, schema=SCHEMA).to_batches()


def write_batches(batches: Iterable[Any], folder: Path) -> None:
    """Write files without Java into a folder that has none."""
    # Only here: it loads the library that writes Parquet, which no task of Spark needs.
    from pyarrow import dataset  # noqa: PLC0415

    rest, numbers = iter(batches), itertools.count()
    while some := list(itertools.islice(rest, _KEPT)):
        dataset.write_dataset(
            pa.Table.from_batches(some, SCHEMA),
            folder,
            format="parquet",
            # Not by real topic, too: readers would take a topic that is named 007 for the number 7.
            partitioning=dataset.partitioning(pa.schema([SCHEMA.field("day")]), flavor="hive"),
            basename_template=f"part-{next(numbers):05}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
            max_partitions=100_000,
        )
