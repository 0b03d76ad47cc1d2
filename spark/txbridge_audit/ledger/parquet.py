"""The ledger as Parquet files, written without Java: partitioned by the day of birth (UTC)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyarrow import dataset

from txbridge_audit.ledger.schema import SCHEMA

#: Batches that are kept until a file of each day is written: up to 100,000 rows.
_KEPT = 100


def write_batches(batches: Iterable[Any], folder: Path) -> None:
    """Write files into a folder that has none."""
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
