"""The audit: the fate of every transactional message, computed again from the Kafka topics alone with PySpark.

It shares the names of topics and headers with the worker, and none of the worker's logic. Its rules are in
docs/audit.md, and the way of one row from Kafka to the ledger is in docs/architecture.md.
"""

from __future__ import annotations

from txbridge.extras import missing_extra

if error := missing_extra(__name__, "audit", "pyspark"):
    raise error

from txbridge_audit.audit import run_audit
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.notebook import Audited, audited, transactions, violations
from txbridge_audit.report.model import AuditReport, Entry, Place, Tally

__all__ = [
    "AuditReport",
    "Audited",
    "CouldNotAuditError",
    "Entry",
    "Place",
    "Tally",
    "audited",
    "run_audit",
    "transactions",
    "violations",
]
