"""The shop of docs/tutorial.md: the page's commands as a reader runs them, and the tests of examples/shop."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.support import http
from tests.support.command_line import run
from tests.support.harness import eventually
from tests.support.sql_application import in_new_schema
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.testing.sandbox import read_committed

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
MODULES = {"python": [], "txbridge": ["-m", "txbridge.cli.main"], "uvicorn": ["-m", "uvicorn"]}


def commands(program: str, *first: str) -> list[list[str]]:
    """The arguments of this program's command lines on the page, those that begin with these."""
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)]
    return [line[1:] for line in lines if line[: len(first) + 1] == [program, *first]]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SHOP_", "TXBRIDGE_"))}
    return {**kept, **more}


def post(url: str, body: dict[str, object]) -> tuple[int, object]:
    """Status and answer; 0 while nobody answers."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = http.ask_if_there(request)
    return answer.status, json.loads(answer.body or b"null")


@contextmanager
def running(program: str, arguments: list[str], given: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the page. It is killed at the end unless it has ended."""
    process = subprocess.Popen([sys.executable, *MODULES[program], *arguments], cwd=SHOP, env=given)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def test_the_shop_and_its_consumer(own_kafka: EmbeddedKafka, postgres_url: str) -> None:
    url = in_new_schema(postgres_url, "tutorial")
    port, metrics_port = str(free_port()), str(free_port())
    servers = own_kafka.bootstrap_servers
    given = environment(
        TXBRIDGE_BOOTSTRAP_SERVERS=servers,
        SHOP_DATABASE_URL=url,
        SHOP_KAFKA=json.dumps({"bootstrap.servers": servers}),
        SHOP_REMIND_AFTER="PT8S",
    )

    def run_step(program: str, arguments: list[str]) -> None:
        line = [sys.executable, *MODULES[program], *arguments]
        done = run(line, cwd=SHOP, env=given, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    run_step("txbridge", *commands("txbridge", "topics"))
    run_step("python", *commands("python", "orders.py"))
    [worker], [service] = commands("txbridge", "worker"), commands("uvicorn")
    [billing] = commands("python", "billing.py")
    engine = create_engine(url)

    def stored(table: str) -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.execute(text(f"SELECT order_id FROM {table}")).scalars())

    with ExitStack() as stack:
        stack.enter_context(running("txbridge", [one.replace("9464", metrics_port) for one in worker], given))
        processes = [
            stack.enter_context(running(program, arguments, given))
            for program, arguments in (("uvicorn", [*service, "--port", port]), ("python", billing))
        ]
        # The worker, too: a payment has to find the reminder before its time.
        for ready in (port, metrics_port):
            eventually(lambda ready=ready: http.ask_if_there(f"http://127.0.0.1:{ready}/readyz").status == 200, 60)
        # The two requests of the page: an order, and its payment.
        for arguments, answer in zip(
            commands("curl"),
            [(201, {"number": 1}), (201, {"paid": "5f0e3c52-6a3b-4e0a-9f0c-0d8b8d1f5a01"})],
            strict=True,
        ):
            body, address = json.loads(arguments[arguments.index("--json") + 1]), arguments[-1]
            assert post(address.replace("8000", port), body) == answer
        unpaid = str(uuid.uuid4())
        orders, order = f"http://127.0.0.1:{port}/orders", {"id": unpaid, "item": "mug", "quantity": 98}
        assert post(orders, order) == (201, {"number": 2})
        assert post(orders, order)[0] == 200
        assert post(orders, {**order, "id": str(uuid.uuid4())}) == (409, {"error": "out of stock"})
        eventually(lambda: stored("reminders") == [unpaid], 60)
        reminders = read_committed({"bootstrap.servers": servers, "log_level": 0}, "orders.unpaid", 4)
        assert [record.key() for record in reminders] == [unpaid.encode()]
        assert stored("invoices") == sorted([answer[1]["paid"], unpaid])
        assert stored("payments") == [answer[1]["paid"]]
        run_step("txbridge", *commands("txbridge", "doctor"))
        assert "txbridge_half_oldest_pending_seconds" in http.ask(f"http://127.0.0.1:{metrics_port}/metrics").text
        for process, code in zip(processes, (-signal.SIGTERM, 0), strict=True):
            process.terminate()
            # uvicorn sends itself the signal again, when it has ended all else.
            assert process.wait(60) == code
    engine.dispose()


def run_tests(url: str, *files: str) -> str:
    """Run tests of the example as its readers do, and return what pytest says."""
    done = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--txbridge-backend=embedded", *files],
        cwd=SHOP,
        env=environment(TEST_DATABASE_URL=url),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_fast_tests_of_the_shop_pass(postgres_url: str) -> None:
    assert "8 passed" in run_tests(postgres_url, "tests/test_shop.py")


@pytest.mark.long
def test_the_shop_passes_on_a_real_kafka_and_postgresql(postgres_url: str) -> None:
    assert "1 passed" in run_tests(in_new_schema(postgres_url, "shop"), "tests/test_on_kafka.py")
