"""`python -m tests.chaos`: runs of the cells, one after the other, and a table of them. Exit code 1 on a violation.

build/chaos/report.json and report.md have the table after each cell.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos.cells import CELLS, run_cell
from tests.chaos.cluster_cells import CLUSTER_CELLS
from tests.chaos.door_cells import DOOR_CELLS
from tests.chaos.whole_run import NAMED, is_clean, run_cells, table

_FOLDER = Path("build/chaos")
_ALL = {**CELLS, **DOOR_CELLS, **CLUSTER_CELLS}
#: Cells by `--brokers`.
_CHOICES = {"1": [*CELLS, *DOOR_CELLS], "3": [*CLUSTER_CELLS], "all": _ALL}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--transactions", type=int, default=100_000, help="per cell (default 100,000)")
    parser.add_argument("--cell", choices=sorted(_ALL), action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--brokers", choices=_CHOICES, default="1", help="the cells on one broker, on three, or all of both (default 1)"
    )
    # Option for the process of one cell.
    parser.add_argument("--one", choices=_ALL, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # All processes that were started are ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.one is not None:
        _run(options.one, options.transactions, options.report)
        return 0
    cells = options.cell or _CHOICES[options.brokers]
    found = run_cells(cells, options.transactions, _FOLDER, _say)
    print(table(found))
    return 0 if is_clean(found) else 1


def _run(cell: str, transactions: int, report: Path) -> None:
    found = run_cell(cell, _ALL[cell], transactions, _say)
    violations = found.violations
    report.write_text(json.dumps({**asdict(found), "violations": violations[:NAMED], "violated": len(violations)}))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
