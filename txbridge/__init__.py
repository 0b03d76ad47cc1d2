"""RocketMQ-style transactional messages on Apache Kafka."""

from txbridge.client.async_listener import AsyncTransactionListener
from txbridge.client.async_producer import AsyncTransactionProducer
from txbridge.client.errors import EndTransactionError, PrepareError
from txbridge.client.listener import LocalTransactionState, TransactionListener
from txbridge.client.message import Message, MessageExt
from txbridge.client.metrics import ClientMetrics
from txbridge.client.producer import TransactionProducer
from txbridge.client.result import AsyncTransactionSendResult, SendStatus, TransactionSendResult
from txbridge.errors import EnvironmentProblemError, TxBridgeError, UsageError
from txbridge.topics import LayoutError

__all__ = [
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "AsyncTransactionSendResult",
    "ClientMetrics",
    "EndTransactionError",
    "EnvironmentProblemError",
    "LayoutError",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "PrepareError",
    "SendStatus",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TxBridgeError",
    "UsageError",
]
