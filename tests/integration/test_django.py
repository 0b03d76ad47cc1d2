"""The project of examples/django: its own tests, and its web process with a real Kafka and worker, also killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from txbridge_sqlalchemy import SqlTransactionListener

from tests.support import http
from tests.support.command_line import run
from tests.support.harness import eventually
from tests.support.relays import end_gently, relaying
from tests.support.sql_application import message, place
from txbridge import LocalTransactionState
from txbridge.embedded.ports import free_port

PROJECT = Path(__file__).parents[2] / "examples" / "django"

#: Program of a web worker that dies after its transaction is committed and before its decision is sent.
DYING = """
import os, signal, django
django.setup()
from django.conf import settings
from django.db import transaction
from txbridge import Message
from txbridge_django import announce
from shop.models import Order

import sys
with announce(Message(settings.TOPIC, sys.argv[1])):
    Order.objects.create(number=sys.argv[1])
    if sys.argv[1] == "committed":
        transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""

#: Program that writes messages in the transactions of orders. Every third is rolled back.
ADDING = """
import django
django.setup()
from django.conf import settings
from django.db import transaction
from shop.models import Order
from txbridge import Message
from txbridge_django import outbox

for number in range(30):
    with transaction.atomic():
        order = Order.objects.create(number=f"order {number}")
        outbox.add(Message(settings.TOPIC, str(order.pk), "key"), Message(settings.TOPIC, order.number))
        if number % 3 == 0:
            transaction.set_rollback(True)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def environment(request, tmp_path):
    """Variables of the project, with a database of its own."""
    made = {name: value for name, value in os.environ.items() if not name.startswith("SHOP_")}
    made |= {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONWARNINGS": "error::RuntimeWarning"}
    made["PYTHONPATH"] = os.pathsep.join([str(PROJECT), made.get("PYTHONPATH", "")])
    if request.param == "sqlite":
        yield made | {"SHOP_SQLITE": f"{tmp_path}/shop.sqlite"}
        return
    server = make_url(request.getfixturevalue("postgres_url"))
    host = server.query.get("host") or server.host
    name = re.sub(r"\W", "_", f"d_{tmp_path.name}").lower()
    conninfo = f"host={host} user={server.username} dbname={server.database}"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name}")
    yield made | {"SHOP_POSTGRES_HOST": host, "SHOP_POSTGRES_USER": server.username, "SHOP_POSTGRES_NAME": name}
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def manage(environment, *words):
    done = run([sys.executable, "manage.py", *words], cwd=PROJECT, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def managing(environment, *words):
    with subprocess.Popen([sys.executable, "manage.py", *words], cwd=PROJECT, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def database_of(environment):
    if "SHOP_SQLITE" in environment:
        return create_engine(f"sqlite:///{environment['SHOP_SQLITE']}")
    names = (environment[f"SHOP_POSTGRES_{name}"] for name in ("USER", "NAME", "HOST"))
    return create_engine("postgresql+psycopg://{}@/{}?host={}".format(*names))


def test_the_tests_of_the_project_pass(environment):
    # One of the tests waits this long for a lock.
    said = manage({**environment, "SHOP_SQLITE_TIMEOUT": "2"}, "test", "--noinput")
    number = (PROJECT / "shop/tests.py").read_text(encoding="utf-8").count("def test_")
    assert f"Ran {number} tests" in said
    assert said.rstrip().splitlines()[-2] == "OK" or "\nOK\n" in said


def test_its_table_is_the_one_of_sqlalchemy(environment):
    """The tables are equal, so `txbridge answer-checks` serves a Django project, too."""
    manage(environment, "migrate", "--verbosity", "0")
    engine = database_of(environment)
    listener = SqlTransactionListener(engine, place)
    listener.verify()
    assert listener.check_local_transaction(message("A" * 32)) is LocalTransactionState.ROLLBACK_MESSAGE
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO txbridge_transactions VALUES (:id, 'committed', 1)"), {"id": "B" * 32})
    assert listener.check_local_transaction(message("B" * 32)) is LocalTransactionState.COMMIT_MESSAGE
    engine.dispose()


@pytest.mark.parametrize("environment", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"], indirect=True)
def test_p2_p4_messages_follow_the_rows_of_a_web_process_that_is_killed(bridge, environment):
    """Orders by HTTP, two of which die in and after their transaction. The next web process answers for them."""
    topic = bridge.create_topic("orders")
    environment |= {
        "SHOP_TOPIC": topic,
        "SHOP_BOOTSTRAP_SERVERS": bridge.bootstrap_servers,
        "SHOP_NAMESPACE": bridge.namespace,
        "SHOP_PATIENCE": "2",
    }
    manage(environment, "migrate", "--verbosity", "0")
    port = free_port()
    with managing(environment, "runserver", "--noreload", f"127.0.0.1:{port}") as web:
        eventually(lambda: http.ask_if_there(f"http://127.0.0.1:{port}/readyz").status == 200, 90)
        assert http.place_order(port, "A1") == 201
        assert http.place_order(port, "A1") == 409
        assert http.place_order(port, "A2") == 201
        web.send_signal(signal.SIGKILL)
        web.wait(60)
    for number in ("committed", "lost"):
        done = subprocess.run([sys.executable, "-c", DYING, number], cwd=PROJECT, env=environment, check=False)
        assert done.returncode == -signal.SIGKILL
    bridge.worker(transaction_check_max=100)
    with managing(environment, "runserver", "--noreload", f"127.0.0.1:{port}"):
        eventually(lambda: http.ask_if_there(f"http://127.0.0.1:{port}/readyz").status == 200, 90)
        expected = [["commit"]] * 3 + [["rollback"]] * 2
        eventually(lambda: sorted(bridge.outcomes().values()) == expected, 120)
    assert bridge.visible(topic) == {b"A1": 1, b"A2": 1, b"committed": 1}
    engine = database_of(environment)
    with engine.connect() as connection:
        numbers = connection.execute(text("SELECT number FROM shop_order ORDER BY number")).scalars().all()
    assert numbers == ["A1", "A2", "committed"]
    engine.dispose()


@pytest.mark.parametrize("environment", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"], indirect=True)
def test_p3_p4_a_relay_sends_the_outbox_of_a_project(bridge, environment):
    environment |= {"SHOP_TOPIC": bridge.create_topic("orders")}
    manage(environment, "migrate", "--verbosity", "0")
    subprocess.run([sys.executable, "-c", ADDING], cwd=PROJECT, env=environment, check=True)
    engine = database_of(environment)
    with engine.connect() as connection:
        orders = connection.execute(text("SELECT id, number FROM shop_order ORDER BY id")).all()
    assert len(orders) == 20
    with relaying(bridge, engine.url.render_as_string(hide_password=False)) as relay:
        eventually(lambda: len(bridge.visible(environment["SHOP_TOPIC"])) == 40, 60)
        end_gently(relay)
    seen = [(record.key(), record.value().decode()) for record in bridge.read(environment["SHOP_TOPIC"])]
    assert [value for key, value in seen if key] == [str(number) for number, _ in orders]
    assert sorted(value for key, value in seen if not key) == sorted(number for _, number in orders)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM txbridge_outbox")).scalar_one() == 0
    engine.dispose()
