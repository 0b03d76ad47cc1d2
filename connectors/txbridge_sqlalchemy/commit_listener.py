"""Wake-ups of a relay by PostgreSQL's NOTIFY, which an `Outbox(notify=True)` sends with each commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from txbridge.client.base.log import report
from txbridge_sqlalchemy.row import first_line

#: Longest wait (s) for a notification: then the thread looks whether it has to end.
_WAIT_S = 1.0
#: Pause (s) after a lost connection. Meanwhile the relay polls all the same.
_RETRY_S = 2.0


def listen_for_commits(engine: Engine, channel: str, on_commit: Callable[[], None], ended: threading.Event) -> None:
    """Call `on_commit` after each notification, in a thread, until `ended` is set.

    Only with the driver psycopg. With others, and other databases, the relay polls, as it does in any case.
    """
    if (engine.dialect.name, engine.dialect.driver) != ("postgresql", "psycopg"):
        return
    listening = threading.Thread(
        target=_listen, args=(engine, channel, on_commit, ended), name="txbridge-listen", daemon=True
    )
    listening.start()


def _listen(engine: Engine, channel: str, on_commit: Callable[[], None], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            _listen_once(engine, channel, on_commit, ended)
        except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
            report(logging.DEBUG, "relay_listens_again", reason=first_line(error))
            ended.wait(_RETRY_S)


def _listen_once(engine: Engine, channel: str, on_commit: Callable[[], None], ended: threading.Event) -> None:
    quoted = engine.dialect.identifier_preparer.quote_identifier(channel)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            connection.exec_driver_sql(f"LISTEN {quoted}")
            driver = connection.connection.driver_connection
            assert driver is not None
            while not ended.is_set():
                for _ in driver.notifies(timeout=_WAIT_S, stop_after=1):
                    on_commit()
        finally:
            # Not back into the pool: it listens.
            connection.invalidate()
