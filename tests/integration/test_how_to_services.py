"""The service of the page about Flask, started and ended as a reader does."""

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

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flask.md"


def post(port, number):
    """HTTP status; 0 while nothing answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/{number}", b"", method="POST")
    return http.ask_if_there(request, timeout=120).status


@pytest.mark.long
def test_the_service_of_the_page(bridge, tmp_path):
    topic = bridge.create_topic("orders.placed")
    [program] = re.findall(r"^```python\n# orders.py\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    program = program.replace("orders.placed", topic)
    # Insert the namespace and the Kafka of the test; the page has no namespace and another address.
    program, times = re.subn(
        r"(TransactionProducer)\(\"orders\", listener, (.*?})",
        rf'\1("orders", listener, \2, namespace="{bridge.namespace}"',
        program,
    )
    program = program.replace("127.0.0.1:9092", bridge.bootstrap_servers)
    assert times == 1
    (tmp_path / "orders.py").write_text(program, "utf-8")
    port = free_port()
    bridge.worker()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXBRIDGE_")}
    line = [sys.executable, "-m", "flask", "--app", "orders", "run", "--port", str(port)]
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: post(port, "A1") in {201, 409}, 90)
            assert post(port, "A1") == 409
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
