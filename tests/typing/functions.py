"""Functions of sends, with their types: mypy and pyright refuse the marked lines, and no others."""

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

from confluent_kafka.serialization import SerializationContext
from pydantic import BaseModel
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from txbridge_sqlalchemy import AsyncSqlBridge, AsyncSqlTransactionListener, Outbox, SqlBridge, SqlTransactionListener

from txbridge import (
    Announcement,
    AsyncTransactionProducer,
    AsyncTransactionSendResult,
    Bridge,
    CancelResult,
    Committed,
    LocalTransactionState,
    Message,
    MessageExt,
    Rollback,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)

MESSAGE, SETTINGS = Message("orders", b"1"), {"bootstrap.servers": "127.0.0.1:9092"}


class Order(BaseModel):
    amount: int = 250


def encode(order: Order, context: SerializationContext) -> bytes:
    return f"{context.topic} {order.amount}".encode()


BODIES = [Message("orders", Order()), Message("orders", Order(), serializer=encode)]
Message("orders", "A1", serializer=encode)  # refused


def plain(message: MessageExt, order: Order) -> Committed[int]:
    if order.amount > 1_000:
        raise Rollback("too expensive")
    return Committed(order.amount)


def without_a_value(connection: Connection, message: MessageExt, order: Order) -> None: ...


def with_connection(connection: Connection, message: MessageExt, order: Order) -> Committed[int]:
    return Committed(order.amount)


def with_session(session: Session, message: MessageExt, order: Order) -> Committed[str]:
    return Committed(f"{order.amount}")


async def with_async_connection(connection: AsyncConnection, message: MessageExt, order: Order) -> Committed[int]:
    return Committed(order.amount)


async def with_async_session(session: AsyncSession, message: MessageExt, order: Order) -> Committed[str]:
    return Committed(f"{order.amount}")


def state(message: MessageExt, order: Order) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


def state_of_sql(connection: Connection, message: MessageExt, order: Order) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


def text(message: MessageExt, order: Order) -> str:
    return "commit"


def send_by_any(producer: TransactionProducer) -> None:
    """The bare name of the class takes every producer."""
    assert_type(producer.send_message_in_transaction(MESSAGE, Order(), execute=plain), TransactionSendResult[int])


def of_a_plain_listener(listener: TransactionListener) -> None:
    producer = TransactionProducer("orders", listener, SETTINGS)
    send_by_any(producer)
    result = producer.send_message_in_transaction(MESSAGE, Order(), execute=plain)
    assert_type(result, TransactionSendResult[int])
    assert_type(result.value, int | None)
    producer.send_message_in_transaction(MESSAGE, Order(), execute=state)
    producer.send_message_in_transaction(MESSAGE, 250, execute=plain)  # refused
    producer.send_message_in_transaction(MESSAGE, Order(), execute=text)  # refused


def of_an_engine() -> None:
    producer = TransactionProducer("orders", SqlTransactionListener(create_engine("sqlite://")), SETTINGS)
    send_by_any(producer)
    result = producer.send_message_in_transaction(MESSAGE, Order(), execute=with_connection)
    number: int | None = result.value
    name: str | None = result.value  # refused
    print(number, name)
    producer.send_message_in_transaction(MESSAGE, Order(), execute=without_a_value)
    several = producer.send_messages_in_transaction([MESSAGE], Order(), execute=with_connection)
    assert_type(several, TransactionSendResult[int])
    future = producer.submit_message_in_transaction(MESSAGE, Order(), execute=with_connection)
    assert_type(future, Future[TransactionSendResult[int]])
    producer.send_message_in_transaction(MESSAGE, "A1", execute=with_connection)  # refused
    producer.send_message_in_transaction(MESSAGE, Order(), execute=state_of_sql)  # refused
    producer.send_message_in_transaction(MESSAGE, Order(), execute=with_session)  # refused
    producer.submit_messages_in_transaction([MESSAGE], Order(), execute=with_session)  # refused


def of_sessions() -> None:
    listener = SqlTransactionListener(sessionmaker(create_engine("sqlite://")), with_session)
    SqlTransactionListener(sessionmaker(create_engine("sqlite://")), with_connection)  # refused
    producer = TransactionProducer("orders", listener, SETTINGS)
    result = producer.send_message_in_transaction(MESSAGE, Order(), execute=with_session)
    assert_type(result, TransactionSendResult[str])
    producer.send_message_in_transaction(MESSAGE, Order(), execute=with_connection)  # refused


async def of_an_async_engine() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    producer = AsyncTransactionProducer("orders", AsyncSqlTransactionListener(engine), SETTINGS)
    result = await producer.send_message_in_transaction(MESSAGE, Order(), execute=with_async_connection)
    assert_type(result, AsyncTransactionSendResult[int])
    await producer.send_message_in_transaction(MESSAGE, 250, execute=with_async_connection)  # refused
    await producer.send_message_in_transaction(MESSAGE, Order(), execute=with_async_session)  # refused
    sessions = AsyncTransactionProducer("orders", AsyncSqlTransactionListener(async_sessionmaker(engine)), SETTINGS)
    named = await sessions.send_messages_in_transaction([MESSAGE], Order(), execute=with_async_session)
    assert_type(named.value, str | None)
    # A blocking listener, whose functions run in threads.
    blocking = AsyncTransactionProducer("orders", SqlTransactionListener(create_engine("sqlite://")), SETTINGS)
    number = await blocking.send_message_in_transaction(MESSAGE, Order(), execute=with_connection)
    assert_type(number.value, int | None)


async def announcements() -> None:
    engine, asynchronous = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    with SqlBridge("orders", engine, SETTINGS, namespace="shop") as bridge, bridge.announce(MESSAGE, MESSAGE) as tx:
        assert_type(tx, Announcement[Connection])
        assert_type(tx.connection, Connection)
        assert_type(tx.is_committed, bool | None)
        tx.add(b"no message")  # refused
    with SqlBridge("orders", sessionmaker(engine), outbox=Outbox(), patience=40).announce() as stored:
        assert_type(stored.session, Session)
    SqlBridge("orders", asynchronous, SETTINGS)  # refused
    SqlBridge("orders", engine, SETTINGS, check_concurrency=4)  # refused
    async with AsyncSqlBridge("orders", async_sessionmaker(asynchronous), SETTINGS).announce(MESSAGE) as one:
        assert_type(one.session, AsyncSession)
        assert_type(one.transaction_id, str)
    async with AsyncSqlBridge("orders", asynchronous, SETTINGS) as on_loop, on_loop.announce(MESSAGE) as other:
        print(assert_type(other.connection, AsyncConnection))
        assert_type(await on_loop.cancel(other, "why"), CancelResult)
    with Bridge("orders", lambda message: message.transaction_id in SETTINGS, SETTINGS) as plain:
        with plain.announce("no message"):  # refused
            pass
    Bridge("orders", lambda message: "yes", SETTINGS)  # refused
