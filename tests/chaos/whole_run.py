"""Several cells, one after the other, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Results of one cell, or the reason why it has no verdict: `CellReport` as JSON, or {"error": ...}.
Found = Mapping[str, Any]
#: Greatest number of violations of a cell that the report quotes. It always has their total number.
NAMED = 20
_COLUMNS = {
    "transactions": "transactions",
    "committed": "committed",
    "per_second": "a second",
    "fault_s": "fault, s",
    "longest_pause_s": "longest pause, s",
    "settled_s": "settled after, s",
    "violated": "violations",
    "load": "load",
}


def run_cells(
    cells: Sequence[str],
    transactions: int,
    folder: Path,
    say: Callable[[str], None],
    run_one: Callable[[str, int, Path], Found] | None = None,
) -> dict[str, Found]:
    """Run the cells. report.json and report.md are written after each cell."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Found] = {}
    for number, cell in enumerate(cells, 1):
        say(f"--- {cell}: {number} of {len(cells)} ---")
        started = time.monotonic()
        found[cell] = {**(run_one or _in_a_process)(cell, transactions, folder / "cell.json"), "load": _load()}
        say(f"{cell}: {_verdict(found[cell])}, {time.monotonic() - started:.0f} s")
        (folder / "report.json").write_text(json.dumps({"transactions": transactions, "cells": found}, indent=2))
        (folder / "report.md").write_text(table(found))
    return found


def is_clean(found: Mapping[str, Found]) -> bool:
    """Whether every cell has a verdict without a violation."""
    return all("error" not in one and not one["violated"] for one in found.values())


def table(found: Mapping[str, Found]) -> str:
    """The results as a Markdown table."""
    lines = [f"| cell | {' | '.join(_COLUMNS.values())} |", "|" + " --- |" * (len(_COLUMNS) + 1)]
    for cell, one in found.items():
        if "error" in one:
            lines.append(f"| {cell} | no verdict: {one['error']} |" + " |" * (len(_COLUMNS) - 1))
        else:
            lines.append(f"| {cell} | {' | '.join(_text(one[name]) for name in _COLUMNS)} |")
    for cell, one in found.items():
        lines += ["", f"{cell}:", *(f"- {text}" for text in one["violations"])] if one.get("violations") else []
    return "\n".join(lines) + "\n"


def _text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def _verdict(found: Found) -> str:
    if "error" in found:
        return f"no verdict: {found['error']}"
    return f"{found['violated']} violations, longest pause {found['longest_pause_s']} s"


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def _in_a_process(cell: str, transactions: int, report: Path) -> Found:
    """Run a cell in a process of its own, so that a crash ends only this one."""
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.chaos", "--one", cell, "--transactions", str(transactions)]
    process = subprocess.Popen([*command, "--report", str(report)])
    try:
        code = process.wait()
    except BaseException:
        # The process ends all processes that it has started.
        process.terminate()
        process.wait()
        raise
    if not report.exists():
        return {"error": f"it ended with exit code {code}, see above"}
    found: Found = json.loads(report.read_text())
    return found
