"""A user's code that `mypy --strict` accepts, with the types that it sees (tests/unit/project/test_public_types.py)."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any, assert_type

from prometheus_client import CollectorRegistry

from txbridge import (
    AlreadyDoneError,
    Announcement,
    AsyncBridge,
    AsyncTransactionListener,
    AsyncTransactionProducer,
    AsyncTransactionSendResult,
    Bridge,
    CancelOutcome,
    CancelResult,
    ClientMetrics,
    EndTransactionError,
    EnvironmentProblemError,
    KafkaUnreachableError,
    LayoutError,
    LocalTransactionState,
    Message,
    MessageExt,
    OutcomeUnknownError,
    PrepareError,
    Rollback,
    SendStatus,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
    TxBridgeError,
    UsageError,
)

SETTINGS = {"bootstrap.servers": "127.0.0.1:9092", "linger.ms": 5}


class Orders(TransactionListener):
    """The signatures of the base class."""

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | None:
        assert_type(message.transaction_id, str)
        assert_type(message.value, bytes | None)
        assert_type(message.headers, tuple[tuple[str, bytes | None], ...])
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        assert_type(message.check_times, int)
        assert_type(message.born_timestamp, int | None)
        return LocalTransactionState.UNKNOWN


class Narrower(TransactionListener):
    """A listener that always answers may have a narrower return type."""

    def execute_local_transaction(self, message: MessageExt, arg: object) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK_MESSAGE


class AsyncOrders(AsyncTransactionListener):
    """Each method may be a coroutine or a plain function."""

    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | None:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


class Forwarding(AsyncTransactionListener):
    """A plain method may return the awaitable of another listener."""

    def __init__(self, inner: AsyncOrders) -> None:
        self._inner = inner

    def execute_local_transaction(
        self, message: MessageExt, arg: Any
    ) -> Awaitable[LocalTransactionState | None] | LocalTransactionState | None:
        return self._inner.execute_local_transaction(message, arg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        return None


def messages() -> list[Message]:
    return [
        Message("orders", b"1"),
        Message("orders", "text", key="key", headers={"name": "value", "none": None}),
        Message("orders", None, key=b"key", headers=[("name", b"1"), ("name", "2")], timestamp=1, partition=0),
        Message("orders", b"1", check_immunity_time=30),
    ]


def blocking() -> None:
    metrics = ClientMetrics(CollectorRegistry())
    with TransactionProducer("orders", Orders(), SETTINGS, namespace="shop", metrics=metrics) as producer:
        assert_type(producer, TransactionProducer)
        for message in messages():
            result = producer.send_message_in_transaction(message, {"any": "argument"})
            assert_type(result, TransactionSendResult)
            assert_type(result.local_transaction_state, LocalTransactionState)
            assert_type(result.local_exception, Exception | None)
            assert_type(result.send_status, SendStatus)
            result.wait(timeout=1.0)
        assert_type(producer.submit_message_in_transaction(messages()[0]), Future[TransactionSendResult])
        assert_type(producer.cancel(result, "why"), CancelResult)
        assert_type(producer.cancel("id", "why", timeout=1.0).outcome, CancelOutcome)
        assert_type(producer.flush(10.0), int)
        assert_type(producer.group, str)
    assert_type(TransactionProducer("orders", Narrower(), SETTINGS).start(), TransactionProducer)


async def on_a_loop() -> None:
    async with AsyncTransactionProducer("orders", AsyncOrders(), SETTINGS, check_concurrency=4) as producer:
        assert_type(producer, AsyncTransactionProducer)
        result = await producer.send_message_in_transaction(Message("orders", b"1"))
        assert_type(result, AsyncTransactionSendResult)
        await result.wait()
        assert_type(await producer.cancel(result, "why"), CancelResult)
        assert_type(await producer.flush(), int)
    # An asynchronous producer takes a blocking listener, too.
    await AsyncTransactionProducer("orders", Orders(), SETTINGS).close(timeout=1.0)


async def announcements() -> None:
    with Bridge("orders", Narrower(), SETTINGS) as bridge, bridge.announce(*messages()) as tx:
        assert_type(tx, Announcement)
    async with AsyncBridge("orders", lambda message: None, SETTINGS).announce(messages()[0]) as one:
        assert_type(one.transaction_id, str)


def errors() -> list[type[TxBridgeError]]:
    print(Rollback("too expensive"))
    ours = [UsageError, PrepareError, EndTransactionError, OutcomeUnknownError, AlreadyDoneError]
    return [*ours, LayoutError, EnvironmentProblemError, KafkaUnreachableError]
