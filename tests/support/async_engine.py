"""Asynchronous counterparts of the SQLAlchemy engines of tests, by the driver's name."""

from __future__ import annotations

from typing import Any

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

#: The drivers of each database.
DRIVERS = {"sqlite": ("aiosqlite",), "postgresql": ("psycopg", "asyncpg"), "mysql": ("asyncmy",)}


def async_twin(url: str, driver: str = "", **options: Any) -> AsyncEngine:
    """An engine of the same database and schema."""
    named = make_url(url)
    driver = driver or DRIVERS[named.get_backend_name()][0]
    path = named.query.get("options", "").removeprefix("-csearch_path=")
    named = named.set(drivername=f"{named.get_backend_name()}+{driver}")
    if driver == "asyncpg":
        # asyncpg has another name for the session's options.
        named = named.difference_update_query(["options"])
        options["connect_args"] = {"server_settings": {"search_path": path}}
    return create_async_engine(named, **options)
