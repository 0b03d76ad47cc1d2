"""The relay of faststream-outbox, in an environment of its own: `python faststream_relay.py URL SERVERS TOPIC`.

It is the relay of that project's tutorial, with what its pages about performance and production recommend under load.
A NOTIFY wakes it, because it has asyncpg. It has more workers, with a connection for each, and fetches and deletes rows
in batches. The table has its settings of autovacuum. It does not log each message.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from faststream import FastStream  # type: ignore[import-not-found]
from faststream.kafka import KafkaBroker, KafkaResponse  # type: ignore[import-not-found]
from faststream_outbox import OutboxBroker, make_outbox_table, outbox_autovacuum_ddl  # type: ignore[import-not-found]
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

QUEUE = "orders"
TABLES = MetaData()
TABLE = make_outbox_table(TABLES, table_name="faststream_outbox")
_WORKERS = 8
#: Rows that are fetched, and deleted, in one statement.
_BATCH = 100


async def _relay(body: dict[str, Any]) -> Any:
    return KafkaResponse(body, key=str(body["order"]).encode())


async def main() -> None:
    url, servers, topic = sys.argv[1:]
    # A connection for each worker and one that fetches.
    engine = create_async_engine(url, pool_size=_WORKERS + 1)
    async with engine.begin() as connection:
        await connection.run_sync(TABLES.create_all)
        await connection.execute(text(outbox_autovacuum_ddl(TABLE.name)))
    outbox = OutboxBroker(engine, outbox_table=TABLE, logger=None)
    kafka = KafkaBroker(servers, acks="all", enable_idempotence=True, logger=None)
    subscriber = outbox.subscriber(
        QUEUE,
        max_workers=_WORKERS,
        fetch_batch_size=_BATCH,
        min_fetch_interval=0.1,
        max_fetch_interval=1.0,
        terminal_flush_batch_size=_BATCH,
    )
    kafka.publisher(topic)(subscriber(_relay))
    app = FastStream(outbox, logger=None, on_startup=[kafka.connect])

    @app.after_startup  # type: ignore[untyped-decorator]
    async def say_ready() -> None:
        print("ready", flush=True)

    # Until SIGTERM, which lets it finish what it has fetched.
    await app.run()
    await kafka.stop()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
