"""The audit: what became of every transactional message, recomputed from the Kafka topics alone with PySpark.

It shares the names of topics and headers with txbridge and no code besides. docs/audit.md has its rules, and
docs/architecture.md the way of one row from Kafka to the ledger.
"""

from __future__ import annotations

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
