"""The demo without Kafka: its printed figures, and its local transactions, which share those of SQLite."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.support.source import ROOT
from txbridge import LocalTransactionState

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN


def test_the_figures_that_it_prints_are_those_of_the_page():
    program = (ROOT / "examples" / "flights" / "run.py").read_text()
    page = (ROOT / "docs" / "performance.md").read_text()
    printed = re.search(r"^BENCH_PER_SECOND, ROCKETMQ_PER_SECOND = (\S+), (\S+)$", program, re.MULTILINE)
    ours = re.search(r"^\| asyncio \| ([0-9,]+) \|", page, re.MULTILINE)
    theirs = re.search(r"^\| RocketMQ, [^|]+ threads \| ([^|]+) \|", page, re.MULTILINE)
    assert printed
    assert ours
    assert theirs
    of_the_page = [int(ours[1].replace(",", "")), max(int(one.replace(",", "")) for one in theirs[1].split(", "))]
    assert [int(one) for one in printed.groups()] == of_the_page


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
