"""The audit: the fate of every transactional message, computed again from the Kafka topics alone.

It shares the names of topics and headers with the worker, and none of the worker's logic. Its rules are in
docs/audit.md, and the way of one record from Kafka to the report is in docs/architecture.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from txbridge.errors import needs

if TYPE_CHECKING:
    from txbridge_audit.audit import run_audit
    from txbridge_audit.errors import CouldNotAuditError
    from txbridge_audit.notebook import Audited, audited
    from txbridge_audit.report.entries import Entry, Place, Tally
    from txbridge_audit.report.model import AuditReport

__all__ = ["AuditReport", "Audited", "CouldNotAuditError", "Entry", "Place", "Tally", "audited", "run_audit"]

#: Module of each public name. A name is imported on its first use, because the judge and the engine without Java need
#: no Spark.
_HOMES = {
    "AuditReport": "report.model",
    "Audited": "notebook",
    "CouldNotAuditError": "errors",
    "Entry": "report.entries",
    "Place": "report.entries",
    "Tally": "report.entries",
    "audited": "notebook",
    "run_audit": "audit",
}

if not TYPE_CHECKING:  # else a type checker would accept any name as an attribute of this module

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        extra = "audit-spark" if _HOMES[name] == "notebook" else "audit"
        with needs(extra, f"{name} of {__name__} needs packages of the audit"):
            found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
