"""The ledger as Parquet files, written without Java: partitioned by the day of birth (UTC) and the real topic."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-not-found,unused-ignore]
from pyarrow import dataset

from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.ledger.rows import LedgerRow, phantom_row, row_of
from txbridge_audit.protocol.mentions import CopyMention

#: Rows that are kept until a file of each day and topic is written.
_BATCH = 100_000

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
#: The columns, those of notebook.TRANSACTIONS; a test compares them.
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
        *(("discard_records", pa.list_(_DISCARD)), ("resumed_end", pa.int64())),
        *(("day", pa.date32()), ("real_topic", pa.string())),
    ]
)


class ParquetLedger:
    """Files in a new folder. What a failed attempt has left there is overwritten by `clear`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[LedgerRow] = []
        self._batches = 0

    def clear(self) -> None:
        """Delete what is there, of an attempt that is repeated."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._waiting.clear()
        self._batches = 0

    def take(self, verdict: Verdict) -> None:
        """Add the row of a verdict, if it has one."""
        row = row_of(verdict)
        if row is not None:
            self._add(row)

    def take_stray(self, copy: CopyMention, kind: str) -> None:
        """Add the row of a phantom."""
        if kind == PHANTOM.name:
            self._add(phantom_row(copy))

    def _add(self, row: LedgerRow) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        rows = [row | {"delivered": _places(row.get("delivered"))} for row in self._waiting]
        dataset.write_dataset(
            pa.Table.from_pylist(rows, schema=SCHEMA),
            self._folder,
            format="parquet",
            partitioning=dataset.partitioning(
                pa.schema([SCHEMA.field("day"), SCHEMA.field("real_topic")]), flavor="hive"
            ),
            basename_template=f"part-{self._batches:05}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
            max_partitions=100_000,
        )
        self._batches += 1
        self._waiting.clear()


def _places(delivered: list[tuple[str, int, int]] | None) -> list[dict[str, Any]] | None:
    if delivered is None:
        return None
    return [{"topic": topic, "partition": place, "offset": at} for topic, place, at in delivered]
