"""RocketMQ-style transactional messages on Apache Kafka."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txbridge.client.announcement import Announcement
    from txbridge.client.answers import LocalTransactionState, Rollback, SendStatus
    from txbridge.client.async_bridge import AsyncBridge
    from txbridge.client.bridge import Bridge
    from txbridge.client.errors import AlreadyDoneError, EndTransactionError, OutcomeUnknownError, PrepareError
    from txbridge.client.listener import AsyncTransactionListener, TransactionListener
    from txbridge.client.message import Message, MessageExt
    from txbridge.client.metrics import ClientMetrics
    from txbridge.client.producer import AsyncTransactionProducer, TransactionProducer
    from txbridge.client.result import AsyncTransactionSendResult, CancelOutcome, CancelResult, TransactionSendResult
    from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError, TxBridgeError, UsageError
    from txbridge.topics.verify import LayoutError

__all__ = [
    "AlreadyDoneError",
    "Announcement",
    "AsyncBridge",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "AsyncTransactionSendResult",
    "Bridge",
    "CancelOutcome",
    "CancelResult",
    "ClientMetrics",
    "EndTransactionError",
    "EnvironmentProblemError",
    "KafkaUnreachableError",
    "LayoutError",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "OutcomeUnknownError",
    "PrepareError",
    "Rollback",
    "SendStatus",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TxBridgeError",
    "UsageError",
]

#: Module of each public name, relative to this package. A name is imported on its first use, because commands of the
#: CLI and the pure core need neither librdkafka nor the client.
_HOMES = {
    name: home
    for home, names in {
        "client.announcement": "Announcement",
        "client.answers": "LocalTransactionState Rollback SendStatus",
        "client.async_bridge": "AsyncBridge",
        "client.bridge": "Bridge",
        "client.errors": "AlreadyDoneError EndTransactionError OutcomeUnknownError PrepareError",
        "client.listener": "AsyncTransactionListener TransactionListener",
        "client.message": "Message MessageExt",
        "client.metrics": "ClientMetrics",
        "client.producer": "AsyncTransactionProducer TransactionProducer",
        "client.result": "AsyncTransactionSendResult CancelOutcome CancelResult TransactionSendResult",
        "errors": "EnvironmentProblemError KafkaUnreachableError TxBridgeError UsageError",
        "topics.verify": "LayoutError",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # else a type checker would accept any name as an attribute of this module

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
