"""Local transactions in SQL: the user's rows and the answer to every check, in one database transaction."""

from txbridge_sqlalchemy.listener import Rollback, SqlTransactionListener
from txbridge_sqlalchemy.table import create_table, ddl, metadata, purge, transactions

__all__ = [
    "Rollback",
    "SqlTransactionListener",
    "create_table",
    "ddl",
    "metadata",
    "purge",
    "transactions",
]
