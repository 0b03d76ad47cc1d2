"""The ledger as Parquet files, written without Java: partitioned by the day of birth (UTC)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyarrow import dataset

from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.ledger.rows import LedgerRow, phantom_row, row_of
from txbridge_audit.ledger.schema import SCHEMA, table_of
from txbridge_audit.protocol.mentions import CopyMention

#: Rows that are kept until a file of each day is written.
_BATCH = 100_000


class ParquetLedger:
    """Files in a folder that has none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[LedgerRow] = []
        self._batches = 0

    def take_verdict(self, verdict: Verdict) -> None:
        """Add the row of a verdict, if it has one."""
        row = row_of(verdict)
        if row is not None:
            self._add_row(row)

    def take_stray(self, copy: CopyMention, kind: str) -> None:
        """Add the row of a phantom."""
        if kind == PHANTOM.name:
            self._add_row(phantom_row(copy))

    def _add_row(self, row: LedgerRow) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= _BATCH:
            self.write_rows()

    def write_rows(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        dataset.write_dataset(
            table_of(self._waiting),
            self._folder,
            format="parquet",
            # Not by real topic, too: readers would take a topic that is named 007 for the number 7.
            partitioning=dataset.partitioning(pa.schema([SCHEMA.field("day")]), flavor="hive"),
            basename_template=f"part-{self._batches:05}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
            max_partitions=100_000,
        )
        self._batches += 1
        self._waiting.clear()
