"""The programs of the how-to pages about consumers, messages that are delivered later, and Flask."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import http
from tests.support.harness import Bridge, eventually
from tests.support.source import ROOT, listings, programs_of
from txbridge import Bridge as TxBridge
from txbridge import UsageError
from txbridge.embedded.jars import JarCache
from txbridge.embedded.ports import free_port

MINUTE = 60_000


def shipped(database: Path) -> list[bytes]:
    if not database.is_file():
        return []
    with closing(sqlite3.connect(database)) as connection:
        try:
            return [what for (what,) in connection.execute("SELECT what FROM shipments ORDER BY rowid")]
        except sqlite3.OperationalError:  # the tables do not exist yet
            return []


def test_the_consumer_in_python_does_the_work_of_each_transaction_once(bridge: Bridge, tmp_path: Path) -> None:
    topic = bridge.create_topic("placed", partitions=1)
    # A consumer that died before it had committed its offset gets the first record twice.
    for value, number in ((b"one", 1), (b"one", 1), (b"two", 2)):
        bridge.produce(topic, value=value, headers=[("UNIQ_KEY", f"{number:032}".encode())])
    program = (
        listings("how-to/consumers.md", "python")[0]
        .replace("127.0.0.1:9092", bridge.bootstrap_servers)
        .replace("orders.placed", topic)
        .replace('"shipping"', f'"{bridge.namespace}-shipping"')
    )
    database = tmp_path / "shipping.sqlite"
    consumer = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: len(shipped(database)) >= 2 or consumer.poll() is not None, 30)
    finally:
        consumer.kill()
        _, errors = consumer.communicate()
    assert (shipped(database), errors) == ([b"one", b"two"], "")


def test_the_consumer_in_java_compiles_without_a_warning(tmp_path: Path) -> None:
    if (compiler := shutil.which("javac")) is None:
        pytest.skip("NO JDK: the consumer in Java is not compiled here")
    jars = JarCache()
    jars.ensure_jars()
    source = ROOT / "examples" / "consumers" / "Shipping.java"
    words = [compiler, "-Xlint:all", "-Werror", "-d", str(tmp_path), "-cp", jars.class_path, str(source)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_messages_that_are_delivered_later(bridge: Bridge) -> None:
    page: dict[str, object] = {}
    [program] = listings("how-to/deliver-later.md", "python")
    for topic in ("orders.unpaid", "orders.reminders"):
        program = program.replace(topic, bridge.create_topic(topic.partition(".")[2]))
    exec(program, page)
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with TxBridge("orders", lambda _: None, settings, namespace=bridge.namespace) as ours:
        begun = int(time.time() * 1_000)
        placed = page["place"](ours, "A1")
        assert ours.flush(120) == 0
        ended = int(time.time() * 1_000)
        with bridge.local_owner(placed.half_partition):
            # The other half partition is empty, so nobody has to answer for it.
            assert page["stop_reminder"](ours, placed.transaction_id) is True
        # The time is years ahead, which no setting allows.
        with pytest.raises(UsageError, match="timer_max_delay"):
            page["remind"](ours, "A1")
    [half] = bridge.read(bridge.names.half)
    assert (half.key(), half.value()) == (b"A1", b"A1")
    due = int(dict(half.headers())["TXB_DELIVER_AT"])
    assert begun + 30 * MINUTE <= due <= ended + 30 * MINUTE + 1


@pytest.mark.long
def test_the_service_of_the_page(bridge, tmp_path):
    topic = bridge.create_topic("orders.placed")
    program = programs_of("how-to/flask.md")["orders.py"].replace("orders.placed", topic)
    # Insert the namespace and the Kafka of the test; the page has no namespace and another address.
    program, times = re.subn(
        r"(SqlBridge)\(\"orders\", engine, (.*?})", rf'\1("orders", engine, \2, namespace="{bridge.namespace}"', program
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
            eventually(lambda: http.place_order(port, "A1") in {201, 409}, 90)
            assert http.place_order(port, "A1") == 409
            assert http.place_order(port, "A2") == 201
            bridge.wait_visible(topic, [b"A1", b"A2"], 60)
            for probe in ("readyz", "livez") if "/readyz" in program else ():
                assert http.ask_if_there(f"http://127.0.0.1:{port}/{probe}").status == 200
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert "Error" not in said
    assert bridge.visible(topic) == {b"A1": 1, b"A2": 1}
