"""examples/shop in containers: its compose.yaml as a reader runs it, and its test on Kafka with the worker's image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support import http
from tests.support.harness import eventually
from tests.support.postgres import Postgres
from tests.support.source import ROOT
from txbridge.embedded.ports import free_port
from txbridge.testing.containers import WORKER_IMAGE

SHOP = ROOT / "examples" / "shop"
ORDER = {"id": "5f0e3c52-6a3b-4e0a-9f0c-0d8b8d1f5a01", "item": "mug", "quantity": 2}

#: Docker's own packages have the plugin; Debian 12 has none.
HAS_COMPOSE = (
    shutil.which("docker") is not None
    and subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.skipif(not HAS_COMPOSE, reason="no plugin `docker compose`")
def test_an_order_has_one_invoice_and_the_shop_ends_by_itself(tmp_path: Path):
    folder = shutil.copytree(SHOP, tmp_path / "shop")
    # `make image` has built the wheel, and no index has it. All other packages come from the index.
    [wheel] = (ROOT / "build/image/answer-checks/wheels").glob("txbridge-*.whl")
    shutil.copy(wheel, folder)
    port = free_port()
    ports = {"SHOP_PORT": str(port), "KAFKA_PORT": str(free_port()), "POSTGRES_PORT": str(free_port())}

    def compose(*arguments: str) -> str:
        line = ["docker", "compose", "--project-name", f"shop-{port}", *arguments]
        done = subprocess.run(
            line, cwd=folder, env={**os.environ, **ports}, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def count(table: str) -> str:
        query = [
            "psql",
            "--username",
            "shop",
            "--tuples-only",
            "--no-align",
            "--command",
            f"SELECT count(*) FROM {table}",
        ]
        return compose("exec", "-T", "postgres", *query)

    try:
        compose("up", "--build", "--detach")
        eventually(lambda: http.ask_if_there(f"http://127.0.0.1:{port}/readyz").status == 200, 120)
        body, headers = json.dumps(ORDER).encode(), {"Content-Type": "application/json"}
        placed = http.ask(urllib.request.Request(f"http://127.0.0.1:{port}/orders", body, headers))
        assert (placed.status, json.loads(placed.body)) == (201, {"number": 1})
        # SHOP_REMIND_AFTER of the file is 20 s.
        eventually(lambda: count("reminders") == "1", 60)
        assert count("invoices") == "1"
        compose("stop", "shop", "billing", "worker", "answer-checks")
        ended = [json.loads(line) for line in compose("ps", "--all", "--format", "json").splitlines()]
        codes = {one["Service"]: one["ExitCode"] for one in ended if one["State"] == "exited"}
        # uvicorn sends itself the signal again, which process 1 does not hear.
        assert codes == dict.fromkeys(("topics", "tables", "shop", "billing", "worker", "answer-checks"), 0)
    finally:
        compose("down", "--volumes")


def test_the_tests_of_the_shop_pass_on_workers_of_the_image():
    with Postgres() as postgres:
        options = ["--txbridge-backend=containers", f"--txbridge-worker-image={WORKER_IMAGE}"]
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(line, cwd=SHOP, env={**os.environ, "TEST_DATABASE_URL": postgres.url}, check=False)
    assert done.returncode == 0
