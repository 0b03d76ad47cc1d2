"""The selection of transactions, as conditions on rows."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.judge.selection import AuditSelection


def takes(selection: AuditSelection) -> Column:
    """Whether a row of the ledger is audited. Rows without a valid half message are, too."""
    return ~F.col("valid") | takes_half(selection)


def takes_half(selection: AuditSelection) -> Column:
    """Whether the transaction of a valid half message is audited."""
    taken = F.lit(True)
    if selection.since is not None:
        taken &= F.col("born") >= selection.since
    if selection.until is not None:
        taken &= F.col("born") < selection.until
    if selection.topics:
        # All of several messages must be in chosen topics. One in a topic that is not read would seem to be lost.
        topics = F.coalesce(F.transform("parts", lambda part: part["topic"]), F.array("real_topic"))
        taken &= F.forall(topics, lambda topic: topic.isin(*sorted(selection.topics)))
    return taken
