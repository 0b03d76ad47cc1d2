"""Repeated kills of a consumer with an inbox, and a count of the effects of its records."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import create_engine, func, select
from txbridge_sqlalchemy import create_inbox_table

from tests.support.inbox_consumer import POINTS, billing

#: Besides the points: a kill from outside at a random time.
ANYWHERE = "anywhere"
#: Greatest number of records in one run before the kill.
_SPREAD = 300


@dataclass
class Report:
    """Results of a run."""

    kills: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    missing: int = 0
    twice: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rows = [f"  {point:<10} {self.kills[point]:>6}" for point in (*POINTS, ANYWHERE)]
        total = f"effects {self.effects}, missing {self.missing}, twice {self.twice}, {self.seconds:.0f} s"
        return "\n".join(["killed at    times", *rows, total])


def prepare_tables(url: str) -> None:
    engine = create_engine(url)
    billing.tables.create_all(engine)
    create_inbox_table(engine)
    engine.dispose()


def run(url: str, servers: str, topic: str, numbers: set[str], kills: int, seed: int) -> Report:
    """Have all records of the topic processed, with this many kills meanwhile."""
    dice = random.Random(seed)
    report = Report()
    began = time.monotonic()
    points = [*POINTS, ANYWHERE]
    # Spread over all the records.
    spread = max(2, min(_SPREAD, len(numbers) // (kills + 1)))
    for kill in range(kills):
        point = points[kill % len(points)]
        count = dice.randrange(1, spread)
        with _running(url, servers, topic, "never" if point == ANYWHERE else point, count) as process:
            if point == ANYWHERE:
                assert process.stdout.readline() == "begun\n"
                time.sleep(dice.uniform(0, 0.2))
                process.kill()
            assert process.wait(300) == -signal.SIGKILL
        report.kills[point] += 1
    with _running(url, servers, topic, "never", 0) as process:
        while (line := process.stdout.readline()) != "end\n":
            assert line, "the consumer has ended"
        process.kill()
    report.seconds = time.monotonic() - began
    engine = create_engine(url)
    with engine.connect() as connection:
        found = Counter(connection.execute(select(billing.invoices.c.order_id)).scalars())
        assert connection.execute(select(func.count()).select_from(billing.set_aside)).scalar_one() == 0
    engine.dispose()
    report.effects = found.total()
    report.missing = len(numbers - set(found))
    report.twice = sum(times - 1 for times in found.values())
    assert set(found) <= numbers
    return report


def _running(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.support.inbox_consumer", *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
