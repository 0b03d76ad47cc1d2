"""A consumer with an inbox that is killed: every effect of the records that a real worker delivered happens once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import inbox_kills
from tests.support.harness import eventually
from tests.support.inbox_consumer import PARTITIONS
from tests.support.listeners import Commits
from tests.support.sql_application import in_new_schema
from txbridge import Message, TransactionProducer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.long), "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/billing.db"
    return in_new_schema(request.getfixturevalue("postgres_url"), f"b_{tmp_path.name}".lower())


def order(number):
    return json.dumps({"id": number, "quantity": 1})


def deliver(bridge, topic, count):
    """Deliver this many orders, one in ten of them not by txbridge; return their numbers."""
    bridge.worker()
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    numbers = [f"A{number}" for number in range(count)]
    with TransactionProducer("shop", Commits(), settings, namespace=bridge.namespace) as producer:
        for number, name in enumerate(numbers):
            if number % 10:
                producer.submit_message_in_transaction(Message(topic, order(name), key=name))
        producer.flush()
    for partition in range(PARTITIONS):
        foreign = [(order(name).encode(), ()) for name in numbers[10 * partition :: 10 * PARTITIONS]]
        bridge.produce_together(topic, foreign, partition=partition)
    eventually(lambda: bridge.visible(topic).total() == count, 180)
    return set(numbers)


def kill(bridge, url, count, kills):
    topic = bridge.create_topic("orders", PARTITIONS)
    numbers = deliver(bridge, topic, count)
    inbox_kills.prepare_tables(url)
    report = inbox_kills.run(url, bridge.bootstrap_servers, topic, numbers, kills, seed=count)
    print(report)
    assert (report.effects, report.missing, report.twice) == (count, 0, 0)
    assert report.kills.total() == kills


def test_p3_effects_happen_once_though_the_consumer_is_killed(bridge, url):
    """Kills: one at each point between poll and the commit of the offset, and one anywhere."""
    kill(bridge, url, 400, 7)


@pytest.mark.long
def test_p3_effects_happen_once_through_many_kills(bridge, url):
    # A commit is slower on SQLite, so fewer orders prove the same there.
    kill(bridge, url, *((5_000, 20) if url.startswith("sqlite") else (20_000, 50)))


def test_the_programs_of_the_page(bridge, tmp_path):
    """Both programs, started and ended as a reader does, with good records and one for the table `set_aside`."""
    topics = {name: bridge.create_topic(name, PARTITIONS) for name in ("orders.placed", "orders.paid", "orders.unpaid")}
    topic = topics["orders.placed"]
    bridge.produce_together(topic, [(order("A1").encode(), ()), (order("A2").encode(), ())], partition=0)
    kafka = {"bootstrap.servers": bridge.bootstrap_servers}
    shutil.copy(EXAMPLES / "shop" / "settings.py", tmp_path)
    for path, driver in (("shop/billing.py", "sqlite"), ("billing/billing_async.py", "sqlite+aiosqlite")):
        text, name = (EXAMPLES / path).read_text("utf-8"), Path(path).name
        for written, made in topics.items():
            text = text.replace(written, made)
        text = text.replace('"group.id": "billing"', f'"group.id": "{topic}"').replace(
            'group_id="billing"', f'group_id="{topic}.async"'
        )
        (tmp_path / name).write_text(text, "utf-8")
        database = f"{tmp_path}/{name}.sqlite"

        def run(wanted, name=name, url=f"{driver}:///{database}", database=database):
            process = subprocess.Popen(
                [sys.executable, tmp_path / name, bridge.bootstrap_servers, url],
                cwd=tmp_path,
                env={**os.environ, "SHOP_DATABASE_URL": url, "SHOP_KAFKA": json.dumps(kafka)},
            )
            try:
                eventually(lambda: invoiced(database) == wanted, 90)
                process.send_signal(signal.SIGTERM)
                assert process.wait(90) == 0
            finally:
                process.kill()
                process.wait()

        # Each run gets a new record, so that the program has reached its loop before it is ended.
        if name == "billing.py":
            run(["A1", "A2"])
            bridge.produce_together(topic, [(b"no order", ()), (order("A3").encode(), ())], partition=1)
            run(["A1", "A2", "A3"])
            with contextlib.closing(sqlite3.connect(database)) as connection:
                assert connection.execute("SELECT record FROM set_aside").fetchall() == [(f"{topic}:1:0",)]
            bridge.delete_records(topic, 1, 1)
        else:
            run(["A1", "A2", "A3"])
            bridge.produce_together(topic, [(order("A4").encode(), ())], partition=1)
            run(["A1", "A2", "A3", "A4"])


def invoiced(database):
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            return sorted(number for (number,) in connection.execute("SELECT order_id FROM invoices"))
        except sqlite3.OperationalError:
            # The tables do not exist yet.
            return None
