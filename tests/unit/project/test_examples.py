"""Examples without Kafka: programs of pages, the demo's figures, Airflow's DAG, and managed Kafka's configurations."""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml
from txbridge_audit.report.acceptances import read_acceptances

from tests.support.source import ROOT, listings, programs_of
from tools import plots
from txbridge import LocalTransactionState
from txbridge.cli.app import app
from txbridge.config.sources import load_settings

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN


def test_the_figures_that_it_prints_are_those_of_the_page():
    program, rate = (ROOT / "examples/flights/run.py").read_text(), "transactions a second"
    [printed] = re.findall(r"^BENCH_PER_SECOND, ROCKETMQ_PER_SECOND = (\S+), (\S+)$", program, re.MULTILINE)
    page = plots.rows_of("performance.md", f"| | {rate}")
    rates = [page[name][rate].split(", ") for name in ("asyncio", "RocketMQ, 1, 8, 32, 64 threads")]
    assert [int(one) for one in printed] == [max(int(one.replace(",", "")) for one in found) for found in rates]


@pytest.fixture
def flight_log(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from flights.listener import FlightLog

    made = FlightLog(tmp_path / "flights.sqlite")
    yield made
    made.close()


def flight(*, departed=True, has_air_time=True):
    row = {"time_hour": "2013-01-01T10:00:00Z"}
    return SimpleNamespace(carrier="UA", flight="1545", departed=departed, has_air_time=has_air_time, row=row)


def message(number):
    return SimpleNamespace(transaction_id=f"{number:032}")


def rows(flight_log):
    return [row[0] for row in flight_log._connection.execute("SELECT transaction_id FROM departures ORDER BY 1")]


async def test_local_transactions_at_the_same_time_share_one_of_the_database(flight_log):
    works = [flight_log.execute_local_transaction(message(number), flight()) for number in range(500)]
    assert await asyncio.gather(*works) == [COMMIT] * 500
    assert rows(flight_log) == [f"{number:032}" for number in range(500)]
    assert 1 <= flight_log.commits <= 10


async def test_a_decision_follows_the_commit_and_a_check_finds_the_row(flight_log):
    file = flight_log._connection.execute("PRAGMA database_list").fetchone()[2]
    kinds = {COMMIT: flight(), UNKNOWN: flight(has_air_time=False), ROLLBACK: flight(departed=False)}
    for number, (answer, kind) in enumerate(kinds.items()):
        assert await flight_log.execute_local_transaction(message(number), kind) is answer
        # Another connection does not see an open transaction.
        with closing(sqlite3.connect(file)) as other:
            assert other.execute("SELECT count(*) FROM departures").fetchone() == (min(number + 1, 2),)
    checks = [await flight_log.check_local_transaction(message(number)) for number in range(3)]
    assert checks == [COMMIT, COMMIT, ROLLBACK]


async def test_what_the_database_refuses_is_refused_for_all_that_share_it_and_the_next_ones_go_on(flight_log):
    twice = [flight_log.execute_local_transaction(message(1), flight()) for _ in range(2)]
    refused = await asyncio.gather(*twice, return_exceptions=True)
    assert await flight_log.execute_local_transaction(message(2), flight()) is COMMIT
    # The first one may have had a database transaction of its own.
    assert isinstance(refused[1], sqlite3.IntegrityError)
    assert refused[0] is COMMIT or isinstance(refused[0], sqlite3.IntegrityError)


def test_the_page_of_the_inbox_shows_the_program_as_it_is() -> None:
    program = (ROOT / "examples" / "shop" / "billing.py").read_text("utf-8")
    [shown] = programs_of("inbox.md").values()
    assert [part for part in shown.split("\n\n\n") if part.strip() not in program] == []


def test_the_tutorial_shows_the_shop_as_it_is() -> None:
    shown, folder = programs_of("tutorial.md"), ROOT / "examples" / "shop"
    assert list(shown) == ["orders.py", "shop.py", "tests/test_shop.py"]
    for name in ("orders.py", "shop.py"):
        assert shown[name] == (folder / name).read_text("utf-8")
    functions = (folder / "tests" / "test_shop.py").read_text("utf-8").strip().split("\n\n\n")
    assert set(shown["tests/test_shop.py"].strip().split("\n\n\n")) < set(functions)


def test_the_page_about_django_shows_the_view_as_it_is() -> None:
    view = (ROOT / "examples" / "django" / "shop" / "views.py").read_text("utf-8")
    assert programs_of("django.md")["views.py"] == view


def test_the_audit_has_the_options_of_the_dag() -> None:
    program = (ROOT / "examples" / "airflow" / "audit_dag.py").read_text("utf-8")
    command = next(node for node in ast.parse(program).body if "AUDIT" in ast.unparse(node).split(" = ")[0])
    given = set(re.findall(r"'(--[a-z-]+)'", ast.unparse(command)))
    known = {name for option in typer.main.get_command(app).get_command(None, "audit").params for name in option.opts}  # type: ignore[attr-defined]
    assert {"--ledger", "--continue", "--accept", "--csv"} <= given <= known


def test_acceptances_may_be_a_header_line_alone() -> None:
    assert read_acceptances("id,who,why,until\n", "accepted.csv") == ()


PAGE = "how-to/managed-kafka.md"
#: Settings without which records may be lost.
VITAL = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
}


@pytest.mark.parametrize("text", listings(PAGE, "toml"))
def test_a_worker_takes_each_configuration_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(text)
    settings = load_settings({}, file, {"TXBRIDGE_KAFKA": '{"sasl.password": "secret"}'})
    assert settings.kafka["sasl.password"] == "secret"
    assert settings.kafka["security.protocol"] in {"SASL_SSL", "SSL"}
    assert settings.bootstrap_servers.rpartition(":")[2].isdecimal()


def test_the_brokers_settings_are_those_that_a_worker_relies_on() -> None:
    (text,) = listings(PAGE, "properties")
    given = dict(line.split("=", 1) for line in text.split())
    assert given.items() >= VITAL.items()
    defaults = load_settings({"bootstrap_servers": "b-1:9096"}, None, {})
    assert int(given["transaction.max.timeout.ms"]) >= defaults.commit_timeout
    assert int(given["group.min.session.timeout.ms"]) <= defaults.session_timeout


def test_strimzis_cluster_is_replicated() -> None:
    (text,) = listings(PAGE, "yaml")
    cluster = yaml.safe_load(text)
    config = {name: str(value).lower() for name, value in cluster["spec"]["kafka"]["config"].items()}
    assert config.items() >= VITAL.items()
    assert config["transaction.state.log.replication.factor"] == config["offsets.topic.replication.factor"] == "3"
    assert config["transaction.state.log.min.isr"] == "2"
