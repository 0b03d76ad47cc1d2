"""Closed transactions: those whose verdict changes only when a new record names them.

A continued audit does not carry closed transactions (working_set.py). It reads one again when a record names it. So a
rule that closes too early does not make the report wrong. It only costs the time to read the transaction again. A
transaction stays open if the next step is likely to name it, or if the checkpoint or time alone changes its verdict.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge import fates, violations
from txbridge_audit.engines.spark.read.once import once


def with_closed(judged: DataFrame) -> DataFrame:
    """The judged ledger with `closed`."""
    return judged.withColumn("closed", _closed())


@once
def _closed() -> Column:
    final = ~F.col("fate").isin(fates.PENDING, fates.DISCARDED)
    discarded = F.col("fate") == fates.DISCARDED
    # OFFSET is cut before OP: the tombstone of an entry whose outcome OP names may come with the next step.
    no_longer_parked = final & F.col("parked").isNull()
    set_aside = discarded & F.coalesce(F.col("parked") == "discarded", F.lit(True))
    # The worker may find an END that it has not reached malformed. Its copy in the discard topic does not name the half
    # message. For an END below the checkpoint there is no such doubt: one Kafka transaction wrote checkpoint and copy.
    all_read = F.coalesce(F.col("last_named_at") < F.col("applied_to"), F.col("last_named_at").isNull())
    # Records that an open Kafka transaction hides may prove a loss, or explain one.
    settled = F.col("settled") & F.col("op_settled")
    closed = F.col("valid") & violations.recorded() & settled & all_read & (no_longer_parked | set_aside)
    return F.coalesce(closed, F.lit(False))
