"""Measurements: `python -m tests.bench` takes all, `python -m tests.bench NAME [options]` one of them.

A table is printed; build/bench/report.json has all of a whole run, build/bench/NAME.json one bench's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.bench.environment import environment, load
from tests.bench.feed import say
from tests.bench.report import merged, table

#: In the order of a whole run: what is short and promised first, the longest last.
BENCHES = (
    "prepare",
    "latency",
    "worker",
    "steps",
    "check_back",
    "end_to_end",
    "log_cost",
    "rolling",
    "client",
    "matrix",
    "pending",
    "backlog",
    "audit",
)
_FOLDER = Path("build/bench")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--rounds",
        dest="all_rounds",
        type=int,
        help="of each bench of a whole run that has rounds (default: what each has, mostly 5)",
    )
    kinds = parser.add_subparsers(dest="name", title="benches")
    # Only the one that is wanted is imported: the audit's needs Spark, which the others do not.
    wanted = next((argument for argument in sys.argv[1:] if argument in BENCHES), None)
    for name in BENCHES:
        kind = kinds.add_parser(name)
        if name == wanted:
            module = importlib.import_module(f"tests.bench.{name}")
            kind.description = module.__doc__
            module.add_options(kind)
    options = parser.parse_args()
    rounds = vars(options).pop("all_rounds")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if options.name is None:
        return _all(rounds)
    if rounds is not None and "rounds" in options:
        options.rounds = rounds
    return _one(options)


def _one(options: argparse.Namespace) -> int:
    """Run one bench and write its report, also when it fails."""
    name = options.name
    before, since = load(), time.monotonic()
    found: dict[str, Any] = {"options": {key: value for key, value in vars(options).items() if key != "name"}}
    try:
        found |= importlib.import_module(f"tests.bench.{name}").run(options)
    except Exception as error:
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {error}"
    found |= {"load_before": before, "load_after": load(), "seconds": round(time.monotonic() - since, 1)}
    return _finish(f"{name}.json", {name: found})


def _all(rounds: int | None) -> int:
    """Run each bench in a process of its own: none inherits another's memory, and one that dies takes none along."""
    reports: dict[str, Any] = {}
    shared = [] if rounds is None else ["--rounds", str(rounds)]
    for number, name in enumerate(BENCHES, 1):
        say(f"--- {name}: {number} of {len(BENCHES)} ---")
        path = _FOLDER / f"{name}.json"
        path.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench", *shared, name], stdout=subprocess.DEVNULL, check=False
        )
        if path.exists():
            reports[name] = json.loads(path.read_text())["benches"][name]
        else:
            reports[name] = {"error": f"it ended with exit code {done.returncode}"}
        # After each, so that a run that is broken off has what it did.
        _write("report.json", reports)
    return _finish("report.json", reports)


def _write(file: str, reports: dict[str, Any]) -> dict[str, Any]:
    report = merged(environment(), reports)
    (_FOLDER / file).write_text(json.dumps(report, indent=2) + "\n")
    return report


def _finish(file: str, reports: dict[str, Any]) -> int:
    report = _write(file, reports)
    print(table(report), flush=True)
    say(f"written to {_FOLDER / file}")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
