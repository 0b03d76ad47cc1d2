"""The ledger as Parquet files, written without Java: partitioned by the day of birth (UTC) and the real topic."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyarrow import dataset

from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.ledger.rows import LedgerRow, phantom_row, row_of
from txbridge_audit.ledger.schema import SCHEMA, table_of
from txbridge_audit.protocol.mentions import CopyMention

#: Rows that are kept until a file of each day and topic is written.
_BATCH = 100_000


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
        dataset.write_dataset(
            table_of(self._waiting),
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
