"""Writes messages into the outbox, in the transaction that `atomic()` has begun."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from txbridge import Message
from txbridge.client.outbox_values import row_of_message
from txbridge.errors import UsageError
from txbridge_django.conf import outbox_database, outbox_notifies, refuse_event_loop

#: The model is not used: it takes 1.5 times as long for one message, and twice as long for ten.
_TABLE = "txbridge_outbox"


def add(message: Message, *more: Message) -> None:
    """Write the messages as rows, in their order, in the current transaction of the database of the settings.

    They are sent by `txbridge relay` if and only if it is committed, each as a message of its own. Kafka is not asked,
    and may be away.

    Raises:
        UsageError: this was called outside of `atomic()` or on an event loop, no relay could send one of the messages,
            or the setting names no database. No row was written.
        django.db.DatabaseError: the table is missing, or the database does not answer.

    """
    refuse_event_loop("outbox.add")
    database = outbox_database()
    connection = connections[database]
    if not connection.in_atomic_block:
        raise UsageError(
            f"outbox.add was called outside of transaction.atomic(using={database!r}): the message would be sent "
            "whatever becomes of your data. Call it inside, where you change them"
        )
    rows = [row_of_message(one) for one in (message, *more)]
    with connection.cursor() as cursor:
        cursor.executemany(_insert_into(connection, list(rows[0])), [list(row.values()) for row in rows])
        if outbox_notifies() and connection.vendor == "postgresql":
            # PostgreSQL sends it at the commit, and several of one transaction once.
            cursor.execute("SELECT pg_notify(%s, '')", [_TABLE])


def take_rows() -> list[dict[str, Any]]:
    """Take the rows out of the table, in their order: `MemoryBridge.relay` delivers them in tests."""
    # Models can be imported only when all apps are ready.
    from txbridge_django.models import OutboxEntry  # noqa: PLC0415

    rows = OutboxEntry.objects.using(outbox_database()).order_by("id")
    taken = list(rows.values())
    rows.filter(id__in=[row["id"] for row in taken]).delete()
    return taken


def _insert_into(connection: BaseDatabaseWrapper, columns: list[str]) -> str:
    # `key` and `partition` are words of MySQL.
    names = ", ".join(connection.ops.quote_name(name) for name in columns)
    return f"INSERT INTO {_TABLE} ({names}) VALUES ({', '.join(['%s'] * len(columns))})"  # noqa: S608  names of this module
