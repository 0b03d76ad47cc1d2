"""Helpers for tests of services that use txbridge (docs/testing-your-service.md), and the simulator of the worker."""

from txbridge.core.states import TransactionState
from txbridge.testing.backends import Backend, EmbeddedBackend, ProcessBackend
from txbridge.testing.sandbox import Sandbox
from txbridge.testing.workers import RunningWorker, WorkerProcess

__all__ = [
    "Backend",
    "EmbeddedBackend",
    "ProcessBackend",
    "RunningWorker",
    "Sandbox",
    "TransactionState",
    "WorkerProcess",
]
