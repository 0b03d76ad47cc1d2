"""A row of txbridge that is written in the same transaction as the application's data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, Result, Table, bindparam, delete, func, insert, literal, select
from sqlalchemy.exc import StatementError


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its values by column. Found and deleted by all of them but the time."""

    table: Table
    values: dict[str, Any]

    def insert_row(self, connection: Connection) -> None:
        ask(connection, _statements(self.table).insert, self.values)

    def insert_for_xid(self, connection: Connection) -> Any:
        """Insert it, and return PostgreSQL's id of the transaction."""
        return ask(connection, _statements(self.table).insert_for_xid, self.values).scalar_one()

    def is_there(self, connection: Connection) -> bool:
        return ask(connection, _statements(self.table).find, self.values).first() is not None

    def delete_row(self, connection: Connection) -> None:
        ask(connection, _statements(self.table).delete, self.values)


class _Statements(NamedTuple):
    insert: Executable
    insert_for_xid: Executable
    find: Executable
    delete: Executable


@cache
def _statements(table: Table) -> _Statements:
    # Made once: a third of the processor time of a send went into making them each time.
    same = [column == bindparam(column.name) for column in table.columns if column.name != "created_at"]
    return _Statements(
        insert(table),
        insert(table).returning(func.txid_current()),
        select(literal(1)).select_from(table).where(*same),
        delete(table).where(*same),
    )


#: What to do about a table of txbridge that is not there.
CREATE_IT = (
    "`create_table`, `create_outbox` and `create_inbox_table` of txbridge_sqlalchemy create its tables, and `txbridge "
    "relay --ddl` prints the statements; or this is another database, or schema"
)
#: How PostgreSQL, MySQL and SQLite say that there is no such table.
_MISSING = re.compile(r"42P01|\(1146,|42S02|no such table")
_RIGHTS = (
    "give this user the right; if row-level security hides rows from it, the right is BYPASSRLS, or that of the owner "
    "of a table without FORCE"
)


def ask(
    connection: Connection, statement: Executable, values: dict[str, Any] | list[dict[str, Any]] | None = None
) -> Result[Any]:
    """Execute a statement of txbridge. An error does not show its parameters: the id is the right to decide."""
    try:
        return connection.execute(statement, values)
    except StatementError as error:
        error.hide_parameters = True
        orig = error.orig
        said = f"{getattr(orig, 'sqlstate', None) or getattr(orig, 'pgcode', None)} {orig}"
        if _MISSING.search(said):
            error.add_detail(CREATE_IT)
        elif said.startswith("42501"):
            error.add_detail(_RIGHTS)
        raise


def first_line(error: BaseException) -> str:
    """What the driver says of an error, and what to do, without the statement and its parameters."""
    said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return "; ".join([said, *getattr(error, "detail", ())])
