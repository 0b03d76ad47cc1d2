"""An order service: an order and the message about it are stored together, or neither is.

It consists of a table of orders in SQLite, a listener that writes and looks up, and a producer.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from txbridge import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)

TOPIC = "orders.placed"


class OrderListener(TransactionListener):
    """The local transaction: one row, which carries the id of the transaction, so that a check can find it."""

    def __init__(self, database: Path) -> None:
        self._database = database
        with closing(self._connect()) as connection:
            connection.execute("CREATE TABLE orders (number TEXT PRIMARY KEY, amount INTEGER, transaction_id TEXT)")

    def execute_local_transaction(self, message: MessageExt, arg: dict[str, Any]) -> LocalTransactionState:
        """Store the order; the message is committed exactly if that works."""
        if arg["amount"] > 10_000:
            return LocalTransactionState.ROLLBACK_MESSAGE  # beyond the customer's credit
        with closing(self._connect()) as connection, connection:
            connection.execute(
                "INSERT INTO orders VALUES (?, ?, ?)",
                (arg["number"], arg["amount"], message.transaction_id),
            )
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Commit if the order is there; otherwise it was never stored."""
        with closing(self._connect()) as connection:
            found = connection.execute(
                "SELECT 1 FROM orders WHERE transaction_id = ?",
                (message.transaction_id,),
            ).fetchone()
        return LocalTransactionState.COMMIT_MESSAGE if found else LocalTransactionState.ROLLBACK_MESSAGE

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database)


class OrderService:
    """The interface for the rest of the application."""

    def __init__(self, listener: TransactionListener, kafka: Mapping[str, Any], namespace: str = "") -> None:
        self._producer = TransactionProducer("orders", listener, kafka, namespace=namespace)

    def place(self, number: str, amount: int) -> TransactionSendResult:
        """Place an order; consumers of `orders.placed` get a message exactly if it was stored."""
        order = {"number": number, "amount": amount}
        message = Message(TOPIC, json.dumps(order), key=number)
        return self._producer.send_message_in_transaction(message, order)

    def __enter__(self) -> Self:
        self._producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close()
