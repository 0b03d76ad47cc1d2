"""Settings of a relay's sessions: how PostgreSQL plans, and when a database ends the session of a relay that is paused.

A stopped process keeps its connections, and with them the lock of the outbox and those of the rows of its batch. Its
machine even answers TCP's probes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event

#: Seconds after which the database ends a session that is silent, within a transaction or with the lock of the outbox.
#: A relay that works is silent for a fraction of a second. So it was paused, or has lost the network, and another one
#: goes on. As long as a worker may be silent in its group.
SILENT_S = 10
#: Seconds that a statement waits for a lock: as long as another relay whose session is about to end may have it.
LOCKED_S = 10
#: And its zone, in which a TIMESTAMP is read: times without a zone count as UTC.
_FOR_MYSQL = (
    f"SET SESSION wait_timeout = {SILENT_S}, lock_wait_timeout = {LOCKED_S}, innodb_lock_wait_timeout = {LOCKED_S},"
    " time_zone = '+00:00'"
)
#: The oldest PostgreSQL with idle_session_timeout. An older one keeps the lock of a paused relay.
_IDLE_SINCE = (14,)


def limit_transactions(engine: Engine) -> None:
    """Have the database end transactions of this engine in which nothing happens, and long waits for locks."""
    statement = {
        "postgresql": f"SELECT set_config('idle_in_transaction_session_timeout', '{SILENT_S}s', false),"
        f" set_config('lock_timeout', '{LOCKED_S}s', false)",
        # It also ends sessions that wait in the pool, which replaces them.
        "mysql": _FOR_MYSQL,
        "mariadb": _FOR_MYSQL,
    }.get(engine.dialect.name)
    if statement is None:
        return

    def limit_session(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        try:
            cursor.execute(statement)
        finally:
            cursor.close()
        # PostgreSQL forgets a setting whose transaction is rolled back.
        connection.commit()

    event.listen(engine, "connect", limit_session)


def limit_silence(session: Connection) -> None:
    """Have the database end this session when it is silent, and not only in a transaction."""
    refuse_policies(session, "SESSION")
    if session.dialect.name == "postgresql" and (session.dialect.server_version_info or ()) >= _IDLE_SINCE:
        session.exec_driver_sql(f"SET idle_session_timeout = {SILENT_S * 1000}")


def fix_plans(session: Connection) -> None:
    """Have PostgreSQL read the next rows along an index, if there is one of their order, by one plan for all reads.

    Without statistics, as after a burst, it takes 100,000 rows for a few, and sorts all of them for each batch: 213 ms
    instead of 1.5. And to plan each read, look and DELETE anew takes longer than all else for one row.
    """
    if session.dialect.name == "postgresql":
        session.exec_driver_sql("SET enable_sort = off")
        session.exec_driver_sql("SET plan_cache_mode = force_generic_plan")


def refuse_policies(connection: Connection, scope: str) -> None:
    """Have PostgreSQL raise an error instead of hiding rows by row-level security: within LOCAL transaction or SESSION.

    Who does not see all rows takes an outbox for empty that is not.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET {scope} row_security = off")
