"""The parameters of one audit, whatever engine makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge_audit.judge.facts import AuditLimits
from txbridge_audit.judge.selection import AuditSelection

#: Called with a short text for each phase.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of an audit."""

    #: Start of the audit, ms.
    now: int
    limits: AuditLimits
    selection: AuditSelection
    real_topics: frozenset[str]
    settle_timeout: float
