"""The error of the audit: no verdict can be given."""

from __future__ import annotations


class CouldNotAuditError(Exception):
    """The audit gives no verdict: the cluster, the log or this machine lacks something. The message says what to do.

    Never raised because of what was found: violations are a result (`AuditReport.violations`), not an error.
    """


class ElectionError(CouldNotAuditError):
    """A leader changed meanwhile, or was being elected: the same audit, made again, can give a verdict."""
