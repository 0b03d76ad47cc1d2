"""The errors of an audit that can give no verdict."""

from __future__ import annotations


class CouldNotAuditError(Exception):
    """The audit gives no verdict: the cluster, the log or this machine lacks something. The message says what to do.

    Never raised for violations. They are a result (`AuditReport.violations`), not an error.
    """


class KafkaAwayError(CouldNotAuditError):
    """Kafka has answered before, and does not any more."""


class ElectionError(CouldNotAuditError):
    """A leader changed during the audit, or was being elected. The same audit, repeated, can give a verdict."""
