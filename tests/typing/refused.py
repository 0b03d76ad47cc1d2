"""Mistakes of users that `mypy --strict` refuses; the comment of each line names the expected error."""

from __future__ import annotations

from typing import Any

import txbridge
from txbridge import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionProducer,
)

SETTINGS = {"bootstrap.servers": "127.0.0.1:9092"}


class Orders(TransactionListener):
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> str:  # refused: override
        return "commit"

    def check_local_transaction(self, message: Message, more: str) -> LocalTransactionState:  # refused: override
        return LocalTransactionState.COMMIT_MESSAGE


class Blocking(TransactionListener):
    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> None:  # refused: override
        print(message, arg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        print(LocalTransactionState.COMMIT)  # refused: attr-defined
        return LocalTransactionState.COMMIT_MESSAGE


class Forgetful(TransactionListener):
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> None:
        return None


class AsyncOrders(AsyncTransactionListener):
    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> None:
        message.transaction_id = "1"  # refused: misc

    async def check_local_transaction(self, message: MessageExt) -> str:  # refused: override
        return "commit"


def blocking(listener: Blocking) -> None:
    Forgetful()  # refused: abstract
    Message("orders")  # refused: call-overload
    Message("orders", {"not": "bytes"})  # refused: call-overload
    Message("orders", b"1", headers={"name": 1})  # refused: arg-type
    TransactionProducer("orders", AsyncOrders(), SETTINGS)  # refused: arg-type
    TransactionProducer("orders", listener)  # refused: call-arg
    TransactionProducer("orders", listener, SETTINGS, check_concurrency=2)  # refused: call-arg
    with TransactionProducer("orders", listener, SETTINGS) as producer:
        producer.send_message_in_transaction("orders", b"1")  # refused: arg-type
        producer.submit_message_in_transaction(Message("orders", b"1")).wait()  # refused: attr-defined


async def on_a_loop() -> None:
    producer = AsyncTransactionProducer("orders", AsyncOrders(), SETTINGS)
    producer.flush()  # refused: unused-coroutine
    result = await producer.send_message_in_transaction(Message("orders", b"1"))
    state: str = result.local_transaction_state  # refused: assignment
    result.wait()  # refused: unused-coroutine
    print(state, txbridge.Producer)  # refused: attr-defined
