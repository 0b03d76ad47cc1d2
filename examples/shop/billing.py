"""Consumer whose effects happen once: an invoice for every order, and a reminder for those that are not paid."""

import json
import signal
from functools import partial

from confluent_kafka import Consumer, KafkaException
from settings import Settings
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from txbridge_sqlalchemy import Inbox, create_inbox_table

tables = MetaData()
invoices = Table(
    "invoices",
    tables,
    Column("id", Integer, primary_key=True),
    Column("order_id", String(36)),
    Column("quantity", Integer),
)
payments = Table("payments", tables, Column("order_id", String(36)))
reminders = Table("reminders", tables, Column("order_id", String(36)))
set_aside = Table("set_aside", tables, Column("record", String(320)), Column("reason", String(200)))


def bill(connection, record):
    order = json.loads(record.value())
    connection.execute(insert(invoices).values(order_id=order["id"], quantity=order["quantity"]))


def note_payment(connection, record):
    connection.execute(insert(payments).values(order_id=json.loads(record.value())["id"]))


def remind(connection, record):
    """The shop cancels the reminder of a paid order, but the payment may come at the last moment."""
    order_id = json.loads(record.value())["id"]
    if connection.execute(select(payments).where(payments.c.order_id == order_id)).first() is None:
        connection.execute(insert(reminders).values(order_id=order_id))


def put_aside(connection, record, reason):
    where = f"{record.topic()}:{record.partition()}:{record.offset()}"
    connection.execute(insert(set_aside).values(record=where, reason=reason[:200]))


#: What happens once for each record of a topic.
WORK = {"orders.placed": bill, "orders.paid": note_payment, "orders.unpaid": remind}


def consume(consumer, inbox, is_ended):
    """Read and work until it is ended."""
    while not is_ended():
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error():
            raise KafkaException(record.error())
        try:
            inbox.process(record, WORK[record.topic()])
        except (ValueError, LookupError, TypeError) as error:
            # It is the record's fault, and will be when it is read again. All other errors end the program.
            inbox.process(record, partial(put_aside, reason=repr(error)))
        consumer.store_offsets(record)


def main():
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.append(True))
    settings = Settings.from_environment()
    engine = create_engine(settings.database_url, pool_pre_ping=True)
    tables.create_all(engine)
    create_inbox_table(engine)
    inbox = Inbox(engine, consumer="billing")
    inbox.verify()
    consumer = Consumer(
        {
            **settings.kafka,
            "group.id": "billing",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # Offsets of finished records only; they are committed every 5 s, and what lies between is skipped.
            "enable.auto.offset.store": False,
        }
    )
    consumer.subscribe(list(WORK))
    try:
        consume(consumer, inbox, lambda: bool(ended))
    finally:
        consumer.close()
        engine.dispose()


if __name__ == "__main__":
    main()
