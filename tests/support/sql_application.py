"""A process with SQL local transactions that kills or stops itself at a given point.

    python -m tests.support.sql_application local URL POINT SIGNAL ID...
    python -m tests.support.sql_application produce URL POINT SIGNAL SERVERS NAMESPACE TOPIC
    python -m tests.support.sql_application announce URL POINT SIGNAL SERVERS NAMESPACE TOPIC

It sends itself the signal (KILL, STOP) when it reaches the point of its first transaction: before the `insert` of the
listener's row, in the `function`, before the `commit`, when it has `committed`, or `never`. `local` executes each
transaction and prints its answer; `produce` sends one message, and `announce` does it with a SqlBridge.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    make_url,
    select,
    text,
)
from txbridge_sqlalchemy import SqlTransactionListener, create_inbox_table, create_table, transactions
from txbridge_sqlalchemy.table import OutcomeTable

from tests.support.listeners import answer_of
from txbridge import Bridge, LocalTransactionState, Message, MessageExt, TransactionListener, TransactionProducer

POINTS = ("insert", "function", "commit", "committed")
GROUP = "sql"

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN

tables = MetaData()
orders = Table("orders", tables, Column("id", Integer, primary_key=True), Column("transaction_id", String(32)))


def message(transaction_id: str) -> MessageExt:
    return MessageExt.for_execution(Message("orders", b"v"), transaction_id, 0, 1, 2)


def number(transaction_id: str) -> int:
    """An order id that fits into 32 bits."""
    return int(transaction_id[-7:], 16)


def place(work: Any, placed: MessageExt, arg: Any) -> None:
    """The local transaction: it inserts an order."""
    work.execute(insert(orders).values(id=arg, transaction_id=placed.transaction_id))


async def place_async(work: Any, placed: MessageExt, arg: Any) -> None:
    """The same in asyncio."""
    await work.execute(insert(orders).values(id=arg, transaction_id=placed.transaction_id))


def create(url: str) -> Engine:
    """An engine of a database with all tables."""
    engine = create_engine(url)
    create_table(engine)
    create_inbox_table(engine)
    tables.create_all(engine)
    return engine


def in_new_schema(server_url: str, schema: str) -> str:
    """The URL of a schema of a PostgreSQL server. It is made anew."""
    server = make_url(server_url)
    admin = create_engine(server)
    with admin.begin() as connection:
        connection.execute(text(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
        connection.execute(text(f'CREATE SCHEMA "{schema}"'))
    admin.dispose()
    return server.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)


def order_ids(engine: Engine) -> list[int]:
    """The orders that are committed."""
    with engine.connect() as connection:
        return list(connection.execute(select(orders.c.id).order_by(orders.c.id)).scalars())


def state_of(engine: Engine, transaction_id: str) -> str | None:
    """The state of a transaction's row; None without a row."""
    with engine.connect() as connection:
        query = select(transactions.c.state).where(transactions.c.id == transaction_id)
        return connection.execute(query).scalar_one_or_none()


def purge_all(engine: Engine) -> int:
    """Delete every row that is committed. No purge is ever asked for that: the mark is an hour in the future."""
    # Ages count from the newest row, but not from the future.
    if state_of(engine, "F" * 32) is None:
        with engine.begin() as connection:
            connection.execute(insert(transactions).values(id="F" * 32, state="committed", created_at=2**63 - 2))
    return OutcomeTable(engine).purge_rows(timedelta(milliseconds=1))


class Application(TransactionListener):
    """A SqlTransactionListener that sends itself a signal at its point."""

    def __init__(self, engine: Engine, point: str, number: int) -> None:
        self._point, self._signal = point, number
        self._listener = SqlTransactionListener(engine, self._place)
        self._listener.verify()

        def before(_connection, _cursor, statement, *_):
            if "INSERT INTO txbridge_transactions" in statement:
                self._reach("insert")

        event.listen(engine, "before_cursor_execute", before)
        event.listen(engine, "commit", lambda _connection: self._reach("commit"))

    def open_transaction(self, message):
        return self._listener.open_transaction(message)

    def _reach(self, point: str) -> None:
        if point == self._point:
            self._point = "never"
            os.kill(os.getpid(), self._signal)

    def _place(self, connection, placed, arg):
        place(connection, placed, arg)
        self._reach("function")

    def execute_local_transaction(self, message, arg):
        answer = self._listener.execute_local_transaction(message, arg)
        self._reach("committed")
        return answer

    def check_local_transaction(self, message):
        return self._listener.check_local_transaction(message)

    def barrier_id(self):
        return self._listener.barrier_id()


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running process of this program, which prints its answers to stdout.

    It is killed at the end unless it has ended.
    """
    with subprocess.Popen([sys.executable, "-m", __name__, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    mode, url, point, name, *more = sys.argv[1:]
    engine = create_engine(url)
    listener = Application(engine, point, signal.Signals[f"SIG{name}"])
    if mode == "local":
        for transaction_id in more:
            answer = answer_of(listener.execute_local_transaction, message(transaction_id), number(transaction_id))
            print(answer.name, flush=True)
            # SQLite locks have no queue: without a gap another process hardly ever gets the lock.
            time.sleep(0.005)
    else:
        servers, namespace, topic = more
        settings = {"bootstrap.servers": servers, "session.timeout.ms": 6_000}
        if mode == "announce":
            with Bridge(GROUP, listener, settings, namespace=namespace).announce(Message(topic, b"order")) as tx:
                place(tx.connection, tx, 1)
                # After COMMIT, and before the END is sent.
                event.listen(engine, "checkin", lambda *_: listener._reach("committed"))
        with TransactionProducer(GROUP, listener, settings, namespace=namespace) as producer:
            result = producer.send_message_in_transaction(Message(topic, b"order"), 1)
            result.wait(120)
            print(result.local_transaction_state.name, flush=True)
    engine.dispose()


if __name__ == "__main__":
    main()
