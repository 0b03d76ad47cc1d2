"""The services of the pages about FastAPI and Flask, started and ended as a reader does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support import http
from tests.support.harness import eventually
from txbridge.embedded.ports import free_port

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"

#: Page, program, the command line that serves it, and the status of a second order with the same number.
SERVICES = {
    "fastapi": ("fastapi.md", "orders.py", ("uvicorn", "orders:app", "--port"), 409),
    "fastapi-async": ("fastapi.md", "orders_async.py", ("uvicorn", "orders_async:app", "--port"), 201),
    "flask": ("flask.md", "orders.py", ("flask", "--app", "orders", "run", "--port"), 409),
}


ADDRESSED = r'\1("orders", listener, \2, namespace="NAMESPACE")'


def program_of(page, name):
    text = (HOW_TO / page).read_text("utf-8")
    return dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))[name]


def post(port, number):
    """HTTP status; 0 while nothing answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/{number}", b"", method="POST")
    return http.ask_if_there(request, timeout=120).status


@pytest.mark.parametrize(
    "service", ["fastapi-async", *(pytest.param(name, marks=pytest.mark.long) for name in ("fastapi", "flask"))]
)
def test_the_service_of_the_page(bridge, tmp_path, service):
    page, name, command, again = SERVICES[service]
    topic = bridge.create_topic("orders.placed")
    program = program_of(page, name).replace("orders.placed", topic)
    # Insert the namespace and the Kafka of the test; the pages have no namespace and another address.
    program, times = re.subn(r"(TransactionProducer)\(\"orders\", listener, (.*?})\)", ADDRESSED, program)
    program, more = re.subn(r"(TransactionProducer)\(\"orders\", listener, (settings)\)", ADDRESSED, program)
    program = program.replace("NAMESPACE", bridge.namespace).replace("127.0.0.1:9092", bridge.bootstrap_servers)
    assert times + more == 1
    (tmp_path / name).write_text(program, "utf-8")
    port = free_port()
    bridge.worker()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXBRIDGE_")}
    with subprocess.Popen(
        [sys.executable, "-m", *command, str(port)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(lambda: post(port, "A1") in {201, 409}, 90)
            assert post(port, "A1") == again
            assert post(port, "A2") == 201
            bridge.wait_visible(topic, [b"A1", b"A2"], 60)
            for probe in ("readyz", "livez") if "/readyz" in program else ():
                assert http.ask_if_there(f"http://127.0.0.1:{port}/{probe}").status == 200
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert "Error" not in said
    assert bridge.visible(topic) == {b"A1": 1, b"A2": 1}
