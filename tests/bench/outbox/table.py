"""A table with a row for each way, as docs/comparison.md shows it."""

from __future__ import annotations

from contextlib import suppress

from tests.bench.measure import P50, P99, PER_SECOND, Rounds
from tests.bench.outbox import figures
from tests.bench.outbox.goals import IDLE, KILL, RELAY, SIGTERM
from tests.bench.outbox.visit import ALL_SEEN, CALL, VISIBLE
from tests.bench.outbox.ways import LOADS, WAYS
from tests.bench.report import CPU

_GROUPS = (figures.APP, figures.POSTGRES, figures.KAFKA, figures.RELAY)
_PACED = "200/s"
_FULL = [name for name, load in LOADS.items() if not load.rate]
#: Of each column: its title, the figures by workload and name, and the digits after the point.
_COLUMNS = (
    (f"call p50 / p99 ms, {_PACED}", [(f", {_PACED}", f"{CALL}{what}") for what in (P50, P99)], 1),
    ("visible p50 / p99 ms", [(f", {_PACED}", f"{VISIBLE}{what}") for what in (P50, P99)], 1),
    ("µs an order in all", [(f", {_PACED}", figures.IN_ALL)], 0),
    (" / ".join(_GROUPS), [(f", {_PACED}", f"{CPU}{group}") for group in _GROUPS], 0),
    ("µs at 20/s", [(", 20/s", figures.IN_ALL)], 0),
    (f"orders a second: {' / '.join(_FULL)}", [(f", {load}", PER_SECOND) for load in _FULL], 0),
    ("µs, 8 threads", [(", 8 threads", figures.IN_ALL)], 0),
    ("the app's", [(", 8 threads", f"{CPU}{figures.APP}")], 0),
    ("WAL / Kafka B", [(f", {_PACED}", what) for what in (figures.WAL, figures.KAFKA_BYTES)], 0),
    ("statements", [(f", {_PACED}", figures.STATEMENTS)], 1),
    ("relay MB", [(f", {_PACED}", figures.MEMORY)], 0),
    ("idle ms/s: relay / Kafka", [(IDLE, f"ms a second, {group}") for group in (figures.RELAY, figures.KAFKA)], 0),
    ("longest wait s: SIGTERM / kill -9", [(RELAY, what) for what in (SIGTERM, KILL)], 1),
    ("backlog s", [(RELAY, ALL_SEEN)], 1),
)


def table(*all_rounds: Rounds) -> str:
    """Medians in Markdown. What was not measured is a dash."""

    def cell(workload: str, what: str, digits: int) -> str:
        for rounds in all_rounds:
            with suppress(KeyError):
                return f"{rounds.median(workload, what):,.{digits}f}"
        return "-"

    rows = [["", *(title for title, _, _ in _COLUMNS)], ["---"] * (len(_COLUMNS) + 1)]
    for name in WAYS:
        cells = [" / ".join(cell(name + load, what, digits) for load, what in of) for _, of, digits in _COLUMNS]
        if any(set(one) - set("-/ ") for one in cells):
            rows.append([name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
