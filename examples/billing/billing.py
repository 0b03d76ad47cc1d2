"""A consumer whose effects happen once: an invoice for every order. docs/inbox.md explains it.

python billing.py 127.0.0.1:9092 sqlite:///billing.sqlite
"""

import json
import signal
import sys
from functools import partial

from confluent_kafka import Consumer, KafkaException
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert
from txbridge_sqlalchemy import Inbox, create_inbox_table

tables = MetaData()
invoices = Table(
    "invoices", tables, Column("id", Integer, primary_key=True), Column("number", String(40)), Column("amount", Integer)
)
set_aside = Table("set_aside", tables, Column("record", String(320)), Column("reason", String(200)))


def bill(connection, record):
    """What happens once for every order."""
    order = json.loads(record.value())
    connection.execute(insert(invoices).values(number=order["number"], amount=order["amount"]))


def put_aside(connection, record, reason):
    """What happens once for a record that no invoice can be made of."""
    where = f"{record.topic()}:{record.partition()}:{record.offset()}"
    connection.execute(insert(set_aside).values(record=where, reason=reason[:200]))


def consume(consumer, inbox, is_ended):
    """Read and work until it is ended."""
    while not is_ended():
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error():
            raise KafkaException(record.error())
        try:
            inbox.process(record, bill)
        except (ValueError, KeyError, TypeError) as error:
            # It is the record's fault, and will be when it is read again. All other errors end the program.
            inbox.process(record, partial(put_aside, reason=repr(error)))
        consumer.store_offsets(record)


def main(servers, database_url):
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.append(True))
    engine = create_engine(database_url, pool_pre_ping=True)
    tables.create_all(engine)
    create_inbox_table(engine)
    inbox = Inbox(engine, consumer="billing")
    inbox.verify()
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "billing",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # Offsets of finished records only; they are committed every 5 s, and what lies between is skipped.
            "enable.auto.offset.store": False,
        }
    )
    consumer.subscribe(["orders.placed"])
    try:
        consume(consumer, inbox, lambda: bool(ended))
    finally:
        consumer.close()
        engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
