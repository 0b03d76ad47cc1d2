"""The shop of the fast tests: a bridge in memory instead of Kafka, and SQLite instead of PostgreSQL."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from orders import create_tables
from settings import Settings
from shop import create_app
from sqlalchemy.ext.asyncio import create_async_engine

from txbridge.testing.memory import MemoryBridge


@pytest.fixture
def settings(txbridge_memory: MemoryBridge, tmp_path: Path) -> Settings:
    url = f"sqlite+aiosqlite:///{tmp_path}/shop.sqlite"
    return Settings(database_url=url, kafka=json.dumps(txbridge_memory.settings), remind_after=timedelta(seconds=20))


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    asyncio.run(prepare(settings.database_url))
    with TestClient(create_app(settings)) as client:
        yield client


async def prepare(url: str) -> None:
    engine = create_async_engine(url)
    await create_tables(engine, mug=3)
    await engine.dispose()
