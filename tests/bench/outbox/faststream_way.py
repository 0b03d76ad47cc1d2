"""faststream-outbox: its relay as a process, and a service that writes its rows with asyncio, which it needs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker

from tests.bench.outbox.announce import INSERT_ORDER, AsyncPlace, Service, news, order
from tests.bench.outbox.relays import ProgramRelay, Relay, Settings
from tests.bench.outbox.shop import Shop

_VENV = Path("build/faststream-outbox/venv")
_RELAY = Path(__file__).with_name("faststream_relay.py")


@contextmanager
def faststream(shop: Shop, _: Settings) -> Iterator[Relay]:
    """The relay of faststream_relay.py, in an environment that is made if it is not there."""
    subprocess.run(["make", "--quiet", f"{_VENV}/.ready"], check=True, stdout=sys.stderr)
    url = make_url(shop.url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
    relay = ProgramRelay([str(_VENV / "bin/python"), str(_RELAY), url, shop.servers, shop.topic])
    try:
        yield relay
    finally:
        relay.stop()


@asynccontextmanager
async def rows(service: Service) -> AsyncIterator[AsyncPlace]:
    """Place orders whose rows faststream-outbox writes."""
    relay, engine = _beside_ours("tests.bench.outbox.faststream_relay"), service.async_engine()
    session = async_sessionmaker(engine, expire_on_commit=False)
    async with relay.OutboxBroker(engine, outbox_table=relay.TABLE, logger=None) as broker:

        async def place(number: int) -> float:
            async with session.begin() as work:
                await work.execute(INSERT_ORDER, order(number))
                await broker.publish(news(number), queue=relay.QUEUE, session=work)
            return time.monotonic()

        yield place
    await engine.dispose()


def _beside_ours(module: str) -> Any:
    """Import a module that needs packages of both environments. What both have is of one version."""
    sys.path.extend(map(str, _VENV.glob("lib/python*/site-packages")))
    return import_module(module)
