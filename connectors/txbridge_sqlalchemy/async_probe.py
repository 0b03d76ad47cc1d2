"""The test of probe.py on an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from txbridge_sqlalchemy.async_work import AsyncDatabase, begin_async
from txbridge_sqlalchemy.hidden_transaction import guard_pool
from txbridge_sqlalchemy.probe import delete_if_there, kept
from txbridge_sqlalchemy.row import Row

_T = TypeVar("_T")


async def async_probe(database: AsyncDatabase, row: Row, look: Callable[[Connection], _T]) -> _T:
    """See `probe`."""
    async with begin_async(database, row.table) as work:
        guard_pool(work.sync.connection)
        seen = await work.connection.run_sync(look)
        await work.connection.run_sync(lambda _: work.sync.write_row(row))
        await work.transaction.rollback()
    async with begin_async(database, row.table) as work:
        stays = await work.connection.run_sync(delete_if_there, row)
    if stays:
        raise kept(row.table.name)
    return seen
