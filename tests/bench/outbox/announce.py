"""The ways in which a service places an order and announces it: what runs in one call, with threads and in asyncio."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, Table, Text, create_engine, insert, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from txbridge_sqlalchemy import AsyncSqlTransactionListener, Outbox, SqlTransactionListener, create_table

from tests.support.listeners import Commits
from txbridge import AsyncTransactionProducer, LocalTransactionState, Message, MessageExt, TransactionProducer

#: Places one order, announces it, and returns the time after its COMMIT (monotonic, s).
Place = Callable[[int], float]
AsyncPlace = Callable[[int], Awaitable[float]]

_KAFKA_S = 30.0
_GROUP = "shop"
#: Connections of an asyncio service, as of a pool that a small server can serve.
_ASYNC_CONNECTIONS = 20

_TABLES = MetaData()
_ORDERS = Table(
    "orders", _TABLES, Column("id", BigInteger, primary_key=True), Column("item", Text), Column("amount", Integer)
)
_OUTBOX = Table(
    "outbox",
    _TABLES,
    *(Column("id", BigInteger, primary_key=True), Column("topic", Text), Column("key", Text), Column("payload", Text)),
)
# Built once, as in a service that is careful, and else as everyone writes them: SQLAlchemy asks for the outbox's key.
INSERT_ORDER = insert(_ORDERS)
INSERT_ROW = insert(_OUTBOX)
NOTIFY = text("NOTIFY outbox")


@dataclass(frozen=True)
class Service:
    """What a service is told at its start."""

    url: str
    servers: str
    topic: str
    #: Most calls at the same time.
    calls: int
    namespace: str = ""
    #: Of txbridge's client (s). None is its default.
    commit_interval: float | None = None

    def engine(self) -> Engine:
        return create_engine(self.url, pool_size=self.calls, max_overflow=0)

    def async_engine(self) -> AsyncEngine:
        url = make_url(self.url).set(drivername="postgresql+asyncpg")
        return create_async_engine(url, pool_size=_ASYNC_CONNECTIONS, max_overflow=0)

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers}

    @property
    def options(self) -> dict[str, Any]:
        """Options of txbridge's producers."""
        more = {} if self.commit_interval is None else {"commit_interval": self.commit_interval}
        return {"namespace": self.namespace, **more}


def order(number: int) -> dict[str, Any]:
    """A row of the table of orders."""
    return {"id": number, "item": "a chair, oak, with arms", "amount": number % 7 + 1}


def news(number: int) -> dict[str, Any]:
    """What is announced of an order."""
    return {"order": number, "item": "a chair, oak, with arms", "amount": number % 7 + 1, "state": "placed"}


def payload(number: int) -> str:
    """The message of some hundred bytes that announces an order."""
    return json.dumps(news(number))


Statement = tuple[Any, dict[str, Any]]
#: The statements of the transaction that places this order.
Statements = Callable[[Service, int], list[Statement]]


def _bare(_: Service, number: int) -> list[Statement]:
    return [(INSERT_ORDER, order(number))]


def _with_row(service: Service, number: int) -> list[Statement]:
    row = {"topic": service.topic, "key": str(number), "payload": payload(number)}
    return [*_bare(service, number), (INSERT_ROW, row)]


def _with_row_and_notify(service: Service, number: int) -> list[Statement]:
    return [*_with_row(service, number), (NOTIFY, {})]


@contextmanager
def _sender(service: Service) -> Iterator[Callable[[int], None]]:
    """Send without waiting, as services do that send after COMMIT."""
    producer = Producer({**service.settings, "enable.idempotence": True})

    def send(number: int) -> None:
        producer.produce(service.topic, payload(number), str(number))
        producer.poll(0)

    yield send
    assert producer.flush(_KAFKA_S) == 0


def _message(service: Service, number: int) -> Message:
    return Message(service.topic, payload(number).encode(), str(number).encode())


def _with(statements: Statements, sends: bool = False) -> Callable[[Service], AbstractContextManager[Place]]:
    @contextmanager
    def placing(service: Service) -> Iterator[Place]:
        with _sender(service) if sends else nullcontext() as send:
            engine = service.engine()

            def place(number: int) -> float:
                with engine.begin() as connection:
                    for statement, values in statements(service, number):
                        connection.execute(statement, values)
                committed = time.monotonic()
                if send is not None:
                    send(number)
                return committed

            yield place
            engine.dispose()

    return placing


def _with_outbox(*, notify: bool) -> Callable[[Service], AbstractContextManager[Place]]:
    box = Outbox(notify=notify)

    @contextmanager
    def placing(service: Service) -> Iterator[Place]:
        engine = service.engine()

        def place(number: int) -> float:
            with engine.begin() as connection:
                connection.execute(INSERT_ORDER, order(number))
                box.add(connection, _message(service, number))
            return time.monotonic()

        yield place
        engine.dispose()

    return placing


class _Noting(SqlTransactionListener):
    """Notes when each transaction was committed."""

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Any:
        state = super().execute_local_transaction(message, arg)
        self.committed[arg] = time.monotonic()
        return state

    committed: dict[int, float]


@contextmanager
def _txbridge(service: Service) -> Iterator[Place]:
    engine = service.engine()
    create_table(engine)

    def execute(connection: Any, _: MessageExt, number: int) -> None:
        connection.execute(INSERT_ORDER, order(number))

    listener = _Noting(engine, execute)
    listener.committed = {}
    with TransactionProducer(_GROUP, listener, service.settings, **service.options) as producer:

        def place(number: int) -> float:
            sent = producer.send_message_in_transaction(_message(service, number), number)
            assert sent.local_transaction_state is LocalTransactionState.COMMIT_MESSAGE, sent
            return listener.committed.pop(number)

        yield place
    engine.dispose()


@contextmanager
def _pipelined(service: Service) -> Iterator[Place]:
    """Messages without a database, at any rate: what the workers make of them."""
    with TransactionProducer(_GROUP, Commits(), service.settings, **service.options) as producer:

        def place(number: int) -> float:
            producer.submit_message_in_transaction(_message(service, number), number)
            return time.monotonic()

        yield place


def _async_with(statements: Statements, sends: bool = False) -> Callable[[Service], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def placing(service: Service) -> AsyncIterator[AsyncPlace]:
        with _sender(service) if sends else nullcontext() as send:
            engine = service.async_engine()

            async def place(number: int) -> float:
                async with engine.begin() as connection:
                    for statement, values in statements(service, number):
                        await connection.execute(statement, values)
                committed = time.monotonic()
                if send is not None:
                    send(number)
                return committed

            yield place
            await engine.dispose()

    return placing


def _async_with_outbox(*, notify: bool) -> Callable[[Service], AbstractAsyncContextManager[AsyncPlace]]:
    box = Outbox(notify=notify)

    @asynccontextmanager
    async def placing(service: Service) -> AsyncIterator[AsyncPlace]:
        engine = service.async_engine()

        async def place(number: int) -> float:
            async with engine.begin() as connection:
                await connection.execute(INSERT_ORDER, order(number))
                await box.async_add(connection, _message(service, number))
            return time.monotonic()

        yield place
        await engine.dispose()

    return placing


class _AsyncNoting(AsyncSqlTransactionListener):
    """Notes when each transaction was committed."""

    committed: dict[int, float]

    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> Any:
        state = await super().execute_local_transaction(message, arg)
        self.committed[arg] = time.monotonic()
        return state


@asynccontextmanager
async def _async_txbridge(service: Service) -> AsyncIterator[AsyncPlace]:
    with_table = service.engine()
    create_table(with_table)
    with_table.dispose()
    engine = service.async_engine()

    async def execute(connection: Any, _: MessageExt, number: int) -> None:
        await connection.execute(INSERT_ORDER, order(number))

    listener = _AsyncNoting(engine, execute)
    listener.committed = {}
    async with AsyncTransactionProducer(_GROUP, listener, service.settings, **service.options) as producer:

        async def place(number: int) -> float:
            sent = await producer.send_message_in_transaction(_message(service, number), number)
            assert sent.local_transaction_state is LocalTransactionState.COMMIT_MESSAGE, sent
            return listener.committed.pop(number)

        yield place
    await engine.dispose()


#: By name: the bare INSERT, a message after COMMIT, a row for a relay, the same with a NOTIFY, both for
#: txbridge's relay, and a half message.
THREADS = {
    "insert": _with(_bare),
    "send": _with(_bare, sends=True),
    "row": _with(_with_row),
    "notify": _with(_with_row_and_notify),
    "outbox": _with_outbox(notify=False),
    "outbox, notify": _with_outbox(notify=True),
    "txbridge": _txbridge,
    "pipelined": _pipelined,
}
ASYNCIO: dict[str, Callable[[Service], AbstractAsyncContextManager[AsyncPlace]]] = {
    "insert": _async_with(_bare),
    "send": _async_with(_bare, sends=True),
    "row": _async_with(_with_row),
    "notify": _async_with(_with_row_and_notify),
    "outbox": _async_with_outbox(notify=False),
    "outbox, notify": _async_with_outbox(notify=True),
    "txbridge": _async_txbridge,
}
