"""Every program that says whether it is ready, started beside each other on one namespace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine
from txbridge_sqlalchemy import create_outbox, create_table

from tests.support import http
from tests.support.command_line import MODULE
from tests.support.forked import start_program
from tests.support.harness import Bridge
from tests.support.listeners import Commits
from tests.support.relays import relaying
from tests.support.rocketmq_door import Door
from txbridge import TransactionProducer
from txbridge.embedded.ports import free_port


@dataclass(frozen=True)
class Program:
    """A running program; a client has neither a port nor a process of its own.

    `why_not_ready` tells in one answer whether it is ready, which is empty then, and why it is not.
    """

    why_not_ready: Callable[[], str]
    port: int = 0
    pid: int = 0

    def is_ready(self) -> bool:
        return not self.why_not_ready()

    def status(self, path: str) -> int:
        """The status of a page, 0 if nobody answers within 10 s."""
        return http.ask_if_there(f"http://127.0.0.1:{self.port}{path}", 10).status


def program_on(port: int, pid: int) -> Program:
    def why_not_ready() -> str:
        answer = http.ask_if_there(f"http://127.0.0.1:{port}/readyz", 10)
        return "" if answer.status == 200 else f"{answer.status} {answer.text}"

    return Program(why_not_ready, port, pid)


@contextmanager
def all_programs(
    bridge: Bridge, folder: Path, group: str = "sql", session_timeout: int = 6_000
) -> Iterator[dict[str, Program]]:
    """A worker, a door, `answer-checks`, an idle relay and an idle client, by name."""
    url, ports = f"sqlite:///{folder}/app.db?timeout=5", [free_port() for _ in range(4)]
    engine = create_engine(url)
    create_table(engine)
    create_outbox(engine)
    engine.dispose()
    where = (f"--bootstrap-servers={bridge.bootstrap_servers}", f"--namespace={bridge.namespace}")
    command = [MODULE, "answer-checks", *where, "--group", group]
    environment = {**os.environ, "TXBRIDGE_DATABASE_URL": url, "TXBRIDGE_LOG_FORMAT": "json"}
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with ExitStack() as at_last:
        options = {"status_page": "read", "session_timeout": session_timeout, "transaction_check_max": 100}
        worker = bridge.worker(metrics_port=ports[0], **options)
        door = at_last.enter_context(Door(bridge, metrics_port=ports[1]))
        log = at_last.enter_context((folder / "answer-checks.log").open("w"))
        answering = start_program([*command, f"--metrics-port={ports[2]}"], environment, stderr=log)
        at_last.callback(answering.wait)
        at_last.callback(answering.kill)
        relay = at_last.enter_context(relaying(bridge, url, f"--metrics-port={ports[3]}"))
        producer = at_last.enter_context(TransactionProducer("idle", Commits(), settings, namespace=bridge.namespace))
        yield {
            "worker": program_on(ports[0], worker.pid),
            "door": program_on(ports[1], door.pid),
            "answer-checks": program_on(ports[2], answering.pid),
            "relay": program_on(ports[3], relay.pid),
            "client": Program(lambda: "" if producer.is_connected else "not connected"),
        }
