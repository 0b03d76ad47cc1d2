"""SQL with SQLAlchemy: local transactions that answer their checks, and consumers whose effects happen once."""

from importlib import import_module
from typing import TYPE_CHECKING

from txbridge.errors import MissingExtraError, missing_extra

if error := missing_extra(__name__, "sqlalchemy", "sqlalchemy"):
    raise error

from txbridge.client.barrier_listener import LostTransactionError
from txbridge_sqlalchemy.inbox import Inbox
from txbridge_sqlalchemy.inbox_table import (
    async_purge_inbox,
    create_inbox_table,
    inbox_ddl,
    inbox_metadata,
    purge_inbox,
)
from txbridge_sqlalchemy.outbox import Outbox
from txbridge_sqlalchemy.outbox_table import OutboxTable, create_outbox, outbox_ddl, outbox_metadata
from txbridge_sqlalchemy.sql_listener import SqlBridge, SqlTransactionListener
from txbridge_sqlalchemy.table import async_purge, create_table, ddl, metadata, purge, transactions

if TYPE_CHECKING:
    from txbridge_sqlalchemy.async_listener import AsyncInbox, AsyncSqlBridge, AsyncSqlTransactionListener

#: Names that need SQLAlchemy's asyncio part, and so greenlet. Loaded on first use, so that the others do not need it.
_ASYNC = {"AsyncInbox", "AsyncSqlBridge", "AsyncSqlTransactionListener"}

__all__ = [
    "AsyncInbox",
    "AsyncSqlBridge",
    "AsyncSqlTransactionListener",
    "Inbox",
    "LostTransactionError",
    "Outbox",
    "OutboxTable",
    "SqlBridge",
    "SqlTransactionListener",
    "async_purge",
    "async_purge_inbox",
    "create_inbox_table",
    "create_outbox",
    "create_table",
    "ddl",
    "inbox_ddl",
    "inbox_metadata",
    "metadata",
    "outbox_ddl",
    "outbox_metadata",
    "purge",
    "purge_inbox",
    "transactions",
]


def __getattr__(name: str) -> object:
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.async_listener")
    except ImportError as error:
        if "greenlet" not in str(error):
            raise
        raise MissingExtraError(f"{name} needs greenlet: pip install 'sqlalchemy[asyncio]'") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
