"""Processes of `txbridge relay`, an outbox that they read, and a look at what has become of its rows."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, func, select
from txbridge_sqlalchemy import Outbox, create_outbox, create_table
from txbridge_sqlalchemy.outbox_table import outbox

from tests.support import http
from tests.support.command_line import MODULE
from tests.support.forked import start_program
from tests.support.harness import Bridge, eventually
from txbridge import Message
from txbridge.core.names import Names
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.plan import PlanOptions, TopicAction
from txbridge.topics.verify import apply

#: Every step of a relay. The first transaction of a take-over is its own: with @2 it is that of the first batch.
RELAY_POINTS = (
    *("relay.taken", "takeover.fenced", "relay.owned", "relay.read", "commit.before_begin@2", "commit.begun@2"),
    *("relay.produced@2", "commit.flushed@2", "commit.committed@2", "relay.confirming", "relay.confirmed"),
)


def make_outbox(url: str) -> Engine:
    engine = create_engine(url)
    create_table(engine)
    create_outbox(engine)
    return engine


@cache
def make_progress(servers: str, namespace: str) -> None:
    """Create the topic of the relays' progress."""
    cluster = KafkaCluster.connect({"bootstrap.servers": servers})
    plans = apply(cluster, Names(namespace), PlanOptions(relay=True))
    assert all(plan.action is not TopicAction.REFUSED for plan in plans), plans


@contextmanager
def relaying(
    bridge: Bridge, url: str, *more: str, fault: str = "", cwd: Path | None = None
) -> Iterator[subprocess.Popen[Any]]:
    """A relay with a fault point. It is killed at the end unless it has ended."""
    make_progress(bridge.bootstrap_servers, bridge.namespace)
    where = ("--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace)
    ours = {"TXBRIDGE_DATABASE_URL": url, "TXBRIDGE_LOG_FORMAT": "json"}
    environment = {**os.environ, **ours, "TXBRIDGE_FAULT_POINT": fault}
    process = start_program([MODULE, "relay", *where, *more], environment, cwd=cwd)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def end_gently(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def page(port: int, path: str) -> http.Answer:
    """What a relay with `--metrics-port` answers; status 0 while it does not."""
    return http.ask_if_there(f"http://127.0.0.1:{port}{path}")


def wait_metric(port: int, name_and_value: str) -> None:
    """Wait until a relay shows a metric with this value."""
    eventually(lambda: f"txbridge_relay_{name_and_value}\n" in page(port, "/metrics").text, 30)


def wait_unready(port: int, reason: str) -> str:
    """Wait until a relay is not ready for this reason, and return all that it says."""
    said = ""

    def is_said() -> bool:
        nonlocal said
        answer = page(port, "/readyz")
        said = answer.text
        return answer.status == 503 and reason in said

    eventually(is_said, 30, lambda: f"it says: {said}")
    return said


def add_rows(
    engine: Engine, topic: str, numbers: range, *, keys: int = 5, a_transaction: int = 10, pause: float = 0.0
) -> None:
    """Rows with these numbers as values, of some keys, in transactions of several."""
    box = Outbox()
    for start in range(0, len(numbers), a_transaction):
        some = numbers[start : start + a_transaction]
        with engine.begin() as connection:
            box.add(connection, *(Message(topic, b"%d" % one, b"%d" % (one % keys)) for one in some))
        time.sleep(pause)


def rows_left(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(outbox)).scalar_one()


def wait_relayed(
    bridge: Bridge, topic: str, count: int, relay: subprocess.Popen[Any] | None = None, timeout: float = 20.0
) -> None:
    """Wait until so many different values are visible."""

    def are_visible() -> bool:
        assert relay is None or relay.poll() is None, "the relay has ended"
        return len(bridge.visible(topic)) >= count

    eventually(are_visible, timeout, lambda: f"only {len(bridge.visible(topic))}")


def require_exact(bridge: Bridge, topic: str, count: int) -> None:
    """Each of the values 0 to `count` is there once, and those of a key in their order."""
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in bridge.read(topic):
        by_key[record.key()].append(int(record.value()))
    seen = Counter(value for values in by_key.values() for value in values)
    missing = set(range(count)) - seen.keys()
    assert not missing, f"{len(missing)} lost, among them {sorted(missing)[:5]}"
    twice = {value: times for value, times in seen.items() if times > 1}
    assert not twice, f"more than once: {twice}"
    for key, values in by_key.items():
        assert values == sorted(values), f"key {key!r}: order {values}"


def relay_backends(engine: Engine, condition: str = "true") -> list[int]:
    """Processes of PostgreSQL that serve relays, whose URL names them `relay`."""
    query = f"SELECT pid FROM pg_stat_activity WHERE application_name = 'relay' AND {condition}"
    with engine.connect() as connection:
        return list(connection.exec_driver_sql(query).scalars())


def terminate(engine: Engine, condition: str = "true") -> int:
    """End these sessions of relays. Returns how many there were."""
    found = relay_backends(engine, condition)
    with engine.connect() as connection:
        for pid in found:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
    return len(found)
