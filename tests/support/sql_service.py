"""A process of a service with SQL transactions: the same methods for all forms of the listener."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker
from txbridge_sqlalchemy import AsyncSqlTransactionListener, SqlTransactionListener

from tests.support.async_engine import DRIVERS, async_twin
from tests.support.sql_application import place
from txbridge import LocalTransactionState, MessageExt

#: The forms of the listener. Those for asyncio take the last driver of the database.
FORMS = ("connection", "session", "asyncio", "asyncio-session")


class SqlService:
    """A listener of one form, on an engine of its own."""

    def __init__(
        self,
        url: str,
        form: str,
        function: Callable[[Any, MessageExt, Any], bool | None] = place,
        *,
        driver: str = "",
        on_connect: Callable[[Any, Any], None] | None = None,
        isolation_level: Any = None,
        **options: Any,
    ) -> None:
        """`function` gets the plain connection or session in every form."""
        if form in ("connection", "session"):
            self._runner, self.engine = None, create_engine(url, isolation_level=isolation_level)
            database = sessionmaker(self.engine) if form == "session" else self.engine
            self.listener = SqlTransactionListener(database, function, **options)
        else:
            driver = driver or DRIVERS[make_url(url).get_backend_name()][-1]
            more = {} if isolation_level is None else {"isolation_level": isolation_level}
            self._runner, self.engine = asyncio.Runner(), async_twin(url, driver, **more)

            async def run(given: Any, placed: MessageExt, arg: Any) -> bool | None:
                return await given.run_sync(function, placed, arg)

            twin = async_sessionmaker(self.engine) if form == "asyncio-session" else self.engine
            self.listener = AsyncSqlTransactionListener(twin, run, **options)
        if on_connect is not None:
            event.listen(getattr(self.engine, "sync_engine", self.engine), "connect", on_connect)

    def _done(self, result: Any) -> Any:
        return self._runner.run(result) if inspect.isawaitable(result) else result

    def verify(self) -> None:
        self._done(self.listener.verify())

    def execute_local_transaction(self, placed: MessageExt, arg: Any) -> LocalTransactionState:
        return self._done(self.listener.execute_local_transaction(placed, arg))

    def check_local_transaction(self, placed: MessageExt) -> LocalTransactionState:
        return self._done(self.listener.check_local_transaction(placed))

    def barrier_id(self) -> str:
        return self._done(self.listener.barrier_id())

    def close(self) -> None:
        self._done(self.engine.dispose())
        if self._runner is not None:
            self._runner.close()
