"""`python -m tests.chaos`: every cell, a table, and build/chaos/report.json. Exit code 1 on a violation."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.cells import CELLS, CellReport, run_cell
from tests.chaos.cluster_cells import CLUSTER_CELLS, run_cluster_cell

_REPORT = Path("build/chaos/report.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--transactions", type=int, default=100_000, help="per cell (default 100,000)")
    parser.add_argument(
        "--cell", choices=sorted([*CELLS, *CLUSTER_CELLS]), action="append", help="only this one; may be repeated"
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="the cells on so many (default 1)")
    options = parser.parse_args()
    # So that what was started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reports: list[CellReport] = []
    cells = options.cell or [*(CELLS if options.brokers == 1 else CLUSTER_CELLS)]
    for cell in cells:
        started = time.monotonic()
        run = run_cluster_cell if cell in CLUSTER_CELLS else run_cell
        reports.append(run(cell, options.transactions, _say))
        _say(f"{cell}: {len(reports[-1].violations)} violations, {time.monotonic() - started:.0f} s")
        _REPORT.parent.mkdir(parents=True, exist_ok=True)
        told = [{**asdict(one), "violations": one.violations[:20], "violated": len(one.violations)} for one in reports]
        _REPORT.write_text(json.dumps({"load": os.getloadavg(), "cells": told}, indent=2) + "\n")
    _show(reports)
    return 1 if any(one.violations for one in reports) else 0


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _show(reports: list[CellReport]) -> None:
    table = Table(title=f"Chaos; the whole of it is in {_REPORT}")
    for name in (
        "cell",
        "transactions",
        "committed",
        "a second",
        "fault s",
        "longest pause s",
        "settled s",
        "violations",
    ):
        table.add_column(name, justify="left" if name == "cell" else "right")
    for one in reports:
        figures = (one.transactions, one.committed, one.per_second)
        times = (one.fault_s, one.longest_pause_s, one.settled_s)
        table.add_row(one.cell, *(f"{figure:,}" for figure in figures), *map(str, times), f"{len(one.violations):,}")
    Console(width=120).print(table)
    for one in reports:
        for text in one.violations[:5]:
            print(f"{one.cell}: {text}")


if __name__ == "__main__":
    sys.exit(main())
