"""The fixture of an audit of a log by each of the engines: `audit = both_engines()` in a file."""

from __future__ import annotations

from typing import Any, Protocol

import pytest
from txbridge_audit import AuditReport, run_audit
from txbridge_audit.audit import AuditEngine

from tests.support.audit_log import KafkaLog


class Audit(Protocol):
    """An audit of a log by one of the engines."""

    def __call__(self, log: KafkaLog, **more: object) -> AuditReport: ...


def both_engines() -> Any:
    @pytest.fixture(
        params=[AuditEngine.LOCAL, pytest.param(AuditEngine.SPARK, marks=[pytest.mark.spark, pytest.mark.long])]
    )
    def audit(request: pytest.FixtureRequest) -> Audit:
        chosen: dict[str, Any] = {"engine": request.param}
        if request.param is AuditEngine.SPARK:
            chosen = {"spark": request.getfixturevalue("spark")}
        return lambda log, **more: run_audit(log.servers, namespace=log.names.namespace, **chosen, **more)

    return audit
