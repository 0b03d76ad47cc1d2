"""Announcements and functions of listeners: mypy and pyright refuse the marked lines, and no others."""

from __future__ import annotations

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
    LocalTransactionState,
    Message,
    MessageExt,
    Rollback,
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


def with_connection(connection: Connection, message: MessageExt, order: Order) -> bool:
    return order.amount > 0


def with_session(session: Session, message: MessageExt, order: Order) -> None:
    raise Rollback


async def with_async_session(session: AsyncSession, message: MessageExt, order: Order) -> None:
    print(await session.connection())


def state_of_sql(connection: Connection, message: MessageExt, order: Order) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


async def listeners() -> None:
    engine, sessions = create_engine("sqlite://"), sessionmaker(create_engine("sqlite://"))
    producer = TransactionProducer("orders", SqlTransactionListener(engine, with_connection), SETTINGS)
    assert_type(producer.send_message_in_transaction(MESSAGE, Order()), TransactionSendResult)
    with producer.announce(MESSAGE) as tx:
        assert_type(tx.connection, Connection)
    SqlTransactionListener(sessions, with_session)
    SqlTransactionListener(sessions, with_connection)  # refused
    SqlTransactionListener(engine, with_session)  # refused
    SqlTransactionListener(engine, state_of_sql)  # refused
    asynchronous = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))
    on_loop = AsyncTransactionProducer(
        "orders", AsyncSqlTransactionListener(asynchronous, with_async_session), SETTINGS
    )
    assert_type(await on_loop.send_message_in_transaction(MESSAGE, Order()), AsyncTransactionSendResult)
    AsyncSqlTransactionListener(asynchronous, with_session)  # refused


async def announcements() -> None:
    engine, asynchronous = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    with SqlBridge("orders", engine, SETTINGS, namespace="shop") as bridge, bridge.announce(MESSAGE, MESSAGE) as tx:
        assert_type(tx, Announcement[Connection])
        assert_type(tx.connection, Connection)
        assert_type(tx.is_committed, bool | None)
        tx.add(b"no message")  # refused
    with SqlBridge("orders", sessionmaker(engine), outbox=Outbox(), patience=40).announce(once="1") as stored:
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
        plain.announce("no message")  # refused
    Bridge("orders", lambda message: "yes", SETTINGS)  # refused
