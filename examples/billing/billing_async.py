"""A consumer with an inbox on an event loop: aiokafka and an asynchronous engine.

python billing_async.py 127.0.0.1:9092 sqlite+aiosqlite:///billing.sqlite
"""

import asyncio
import json
import signal
import sys

from aiokafka import AIOKafkaConsumer
from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import create_async_engine
from txbridge_sqlalchemy import AsyncInbox, inbox_metadata

tables = MetaData()
invoices = Table("invoices", tables, Column("order_id", String(36)), Column("quantity", Integer))


async def bill(connection, record):
    order = json.loads(record.value)
    await connection.execute(insert(invoices).values(order_id=order["id"], quantity=order["quantity"]))


async def consume(servers, engine):
    async with engine.begin() as connection:
        await connection.run_sync(tables.create_all)
        await connection.run_sync(inbox_metadata.create_all)
    inbox = AsyncInbox(engine, consumer="billing")
    await inbox.verify()
    consumer = AIOKafkaConsumer(
        "orders.placed",
        bootstrap_servers=servers,
        group_id="billing",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer:
        while True:
            for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in batch:
                    await inbox.process(record, bill)
            await consumer.commit()


async def main(servers, database_url):
    engine = create_async_engine(database_url)
    consuming = asyncio.create_task(consume(servers, engine))
    for number in (signal.SIGTERM, signal.SIGINT):
        # Cancelled anywhere: the record at hand is done, or it will be read again.
        asyncio.get_running_loop().add_signal_handler(number, consuming.cancel)
    await asyncio.wait([consuming])
    await engine.dispose()
    if not consuming.cancelled():
        consuming.result()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
