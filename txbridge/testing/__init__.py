"""Helpers for tests of services that use txbridge (docs/testing-your-service.md)."""

from txbridge.errors import missing_extra

# The workers run on Faust. `worker.py` of this package runs in images without pytest and testcontainers, too.
if error := missing_extra(__name__, "testing", "faust", "pydantic", "rich", "structlog"):
    raise error

from txbridge.core.states import TransactionState
from txbridge.testing.backends import Backend, EmbeddedBackend, ProcessBackend, RunningWorker, WorkerProcess
from txbridge.testing.sandbox import Sandbox

__all__ = [
    "Backend",
    "EmbeddedBackend",
    "ProcessBackend",
    "RunningWorker",
    "Sandbox",
    "TransactionState",
    "WorkerProcess",
]
