"""Closed transactions: what is said of one changes only when a new record names it.

A continued audit forgets closed transactions (working_set.py) and fetches one again when a record names it. So its
report is right whatever a rule here says. A rule that closes too early costs the time to fetch the transaction again,
no more. A transaction stays open if the next step is likely to name it, or if the checkpoint or time alone changes its
verdict.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.judge import fates, violations
from txbridge_audit.read.once import once


def with_closed(judged: DataFrame) -> DataFrame:
    """The judged ledger with `closed`."""
    return judged.withColumn("closed", _closed())


@once
def _closed() -> Column:
    final = ~F.col("fate").isin(fates.PENDING, fates.DISCARDED)
    discarded = F.col("fate") == fates.DISCARDED
    # OFFSET is cut before OP: the tombstone of an entry that OP shows to be done is read by the next step.
    no_longer_parked = final & F.col("parked").isNull()
    set_aside = discarded & F.coalesce(F.col("parked") == "discarded", F.lit(True))
    # A worker that has not reached an END may yet set it aside as malformed, which the discard topic tells without
    # naming the half message. What it has reached, it has set aside in the same Kafka transaction.
    all_read = F.coalesce(F.col("last_named_at") < F.col("applied_to"), F.col("last_named_at").isNull())
    # What an open Kafka transaction hides may prove a loss, or explain one.
    settled = F.col("settled") & F.col("op_settled")
    closed = F.col("valid") & violations.recorded() & settled & all_read & (no_longer_parked | set_aside)
    return F.coalesce(closed, F.lit(False))
