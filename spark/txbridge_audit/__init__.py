"""The audit: what became of every transactional message, recomputed from the Kafka topics alone with PySpark.

It shares the names of topics and headers with txbridge and no code besides. docs/audit.md has its rules.

One row, from Kafka to the ledger, passes these modules:

1. `audit` opens a Spark session and a `Source`.
2. `read.gather` takes the cuts in their order: `read.kafka_admin` asks Kafka for offsets, `read.cuts` waits until open
   Kafka transactions are decided.
3. `read.kafka_source` reads the records below the cuts.
4. `read.decode` makes typed rows of them (`read.frames`), and `read.context` states what is known besides records.
5. `judge.fast_path` counts the plain transactions. Only the others, or all when each needs a row, go on.
6. `judge.mentions` gives every record that names a half message one shape.
7. `judge.ledger` sums them up: one row per half message.

`judge.evaluate` then adds the verdicts: `judge.loss_evidence`, `judge.fates`, `judge.findings` with `judge.violations`,
and `judge.closing`. `judge.summary` counts and lists them, `report` writes them. `incremental` carries rows from one
step of a continued audit to the next.
"""

from __future__ import annotations

from txbridge_audit.audit import run_audit
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.model import AuditReport, Entry, Place, Tally

__all__ = ["AuditReport", "CouldNotAuditError", "Entry", "Place", "Tally", "run_audit"]
