"""The board's queries on a real Prometheus that scrapes a real worker, client and relay: each returns data."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.parse
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from sqlalchemy import Engine

from tests.support import http
from tests.support.harness import COMMIT, ROLLBACK, Bridge, eventually
from tests.support.listeners import Answers
from tests.support.relays import add_rows, make_outbox, relaying
from tests.unit.project.test_observability import PROMETHEUS_OF_CI, RULES, board
from txbridge import ClientMetrics, LocalTransactionState, Message, TransactionProducer
from txbridge.embedded.ports import free_port


def _answers(port: int) -> bool:
    return http.ask_if_there(f"http://127.0.0.1:{port}/-/ready", 5).status == 200


def _load(bridge: Bridge, topic: str, producer: TransactionProducer, outbox: Engine) -> None:
    """Cause at least one event for each number on the board."""
    add_rows(outbox, topic, range(1))
    for state in LocalTransactionState:
        producer.send_message_in_transaction(Message(topic, b"value"), state)
    refused = bridge.prepare(topic, partition=0)
    bridge.decide(refused, COMMIT)
    bridge.decide(refused, ROLLBACK)
    bridge.produce(bridge.names.half, value=b"not ours", partition=0)


def test_every_panel_of_the_board_has_series(bridge: Bridge, tmp_path: Path) -> None:
    binary = shutil.which("prometheus") or shutil.which("prometheus", path=str(PROMETHEUS_OF_CI))
    if binary is None:
        pytest.skip("no prometheus: Debian has it in its package prometheus")
    worker, client, relay, port = free_port(), free_port(), free_port(), free_port()
    url = f"sqlite:///{tmp_path}/outbox.db"
    outbox = make_outbox(url)
    registry, topic = CollectorRegistry(), bridge.create_topic("real")
    server, thread = start_http_server(client, "127.0.0.1", registry)
    targets = [{"targets": [f"127.0.0.1:{one}" for one in (worker, client, relay)]}]
    config = {"scrape_configs": [{"job_name": "txbridge", "scrape_interval": "200ms", "static_configs": targets}]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config | {"rule_files": [str(RULES)]}))

    def ask(path: str, **query: str) -> dict:
        url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
        return json.loads(http.ask(url, 5).body)["data"]

    expressions = [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*"))
        for panel in board()["panels"]
        for target in panel.get("targets", ())
    ]

    def empty() -> list[str]:
        # 0 / 0 is NaN, for which Grafana draws nothing.
        return [
            title
            for title, expression in expressions
            if not any(
                not math.isnan(float(series["value"][1])) for series in ask("/api/v1/query", query=expression)["result"]
            )
        ]

    arguments = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    prometheus = subprocess.Popen(
        [binary, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: _answers(port), 30, "Prometheus did not start")
        bridge.worker(metrics_port=worker)
        # Rates need a change between two scrapes, so the load is repeated until every query returns data.
        settings, metrics = {"bootstrap.servers": bridge.bootstrap_servers}, ClientMetrics(registry)
        deadline = time.monotonic() + 240
        with (
            relaying(bridge, url, "--metrics-port", str(relay)),
            TransactionProducer(
                "orders", Answers(None), settings, namespace=bridge.namespace, metrics=metrics
            ) as producer,
        ):
            while missing := empty():
                assert time.monotonic() < deadline, missing
                _load(bridge, topic, producer, outbox)
                with bridge.local_owner(1):
                    pass  # the worker is fenced, and takes the partition over again
    finally:
        outbox.dispose()
        prometheus.terminate()
        prometheus.wait(120)
        server.shutdown()
        server.server_close()
        thread.join()
