"""Which transactions are closed: only a new record that names one could change what is said of it.

An audit that is continued forgets those (working_set.py) and has them again when a record names them. So it is right
whatever a rule here says; a rule that closes too early costs the time to fetch a transaction again, no more. Not closed
is therefore what the next step is likely to name, and what changes with the progress or with time alone.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.judge import fates, violations


def add(judged: DataFrame) -> DataFrame:
    """The judged ledger with `closed`."""
    return judged.withColumn("closed", F.coalesce(_closed(), F.lit(False)))


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
    return F.col("valid") & violations.recorded() & settled & all_read & (no_longer_parked | set_aside)
