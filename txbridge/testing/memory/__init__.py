"""A bridge in memory for tests of services: the worker's own rules, without Kafka (docs/testing-your-service.md)."""

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.states import TransactionState
from txbridge.testing.memory.bridge import MemoryBridge
from txbridge.testing.memory.broker import CrashPoint
from txbridge.testing.memory.client import ClientCrashError

__all__ = ["CheckPolicy", "ClientCrashError", "CrashPoint", "MemoryBridge", "TransactionState"]
