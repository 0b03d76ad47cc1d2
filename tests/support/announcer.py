"""A SqlBridge of any form, whose announcements have the same blocking interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker
from txbridge_sqlalchemy import AsyncSqlBridge, SqlBridge

from tests.support.async_engine import DRIVERS, async_twin
from txbridge import Announcement, Message


class Announcer:
    """Announces what a function does with the plain connection or session, on an engine of its own."""

    def __init__(self, url: str, form: str, *settings: Any, **options: Any) -> None:
        """`form` is one of tests.support.sql_service."""
        self.runner = asyncio.Runner() if form.startswith("asyncio") else None
        if self.runner is None:
            self._database = self.engine = create_engine(url)
            database = sessionmaker(self.engine) if form == "session" else self.engine
            self.bridge: Any = SqlBridge("orders", database, *settings, **options)
        else:
            twin = async_twin(url, DRIVERS[make_url(url).get_backend_name()][-1])
            self._database, self.engine = twin, twin.sync_engine
            database = async_sessionmaker(twin) if form == "asyncio-session" else twin
            self.bridge = AsyncSqlBridge("orders", database, *settings, **options)
        #: That of the last announcement.
        self.tx: Announcement[Any]
        self.run(self.bridge.start)

    def announce(
        self, body: Callable[[Any, Announcement[Any]], object], *messages: Message, **options: Any
    ) -> Announcement[Any]:
        async def on_loop() -> None:
            async with self.bridge.announce(*messages, **options) as self.tx:
                await self.tx.session.run_sync(body, self.tx)

        if self.runner is not None:
            self.runner.run(on_loop())
        else:
            with self.bridge.announce(*messages, **options) as self.tx:
                body(self.tx.connection, self.tx)
        return self.tx

    def run(self, step: Callable[..., Any], *given: Any) -> Any:
        """Call a method of the bridge's, or one that its bridge in memory has for both."""
        return step(*given) if self.runner is None else self.runner.run(step(*given))

    def let_checks_be_due(self, memory: Any) -> None:
        self.run((memory if self.runner is None else memory.aio).advance, 300)

    def close(self) -> None:
        self.run(self.bridge.close)
        self.run(self._database.dispose)
        if self.runner is not None:
            self.runner.close()
