"""Checkpoints and versions, from the records of OFFSET and OP."""

from __future__ import annotations

from pyspark.sql import DataFrame

from txbridge.core.names import Names
from txbridge_audit.cluster.facts import check_ids
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.engines.spark.read import decode
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.protocol.worker_records import AuditCheckpoint


def refuse_unknown_versions(raw: DataFrame) -> None:
    """Raise CouldNotAuditError when a record that only workers write has another version of the protocol."""
    for row in decode.unknown_versions(raw).limit(1).collect():
        raise CouldNotAuditError(
            f"{row.topic}/{row.partition}@{row.offset} has TXB_V={row.version[:20]}, which this audit does not "
            "know: a newer worker wrote it, and its meaning for the verdict is not known; "
            "use the audit of that version",
        )


def checkpoints(offsets: DataFrame, names: Names, cluster: AuditedCluster) -> dict[int, AuditCheckpoint]:
    """The checkpoint of each partition, from the records of OFFSET.

    Raises CouldNotAuditError when one is about topics that were deleted and created again since.
    """
    rows = decode.checkpoints(offsets, names).collect()
    for row in rows:
        check_ids(names, cluster, row.topics or {})
    return {row.partition: AuditCheckpoint(row.applied_to, row.low, row.applied_entry, row.stamp) for row in rows}
