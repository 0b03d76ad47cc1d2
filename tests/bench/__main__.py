"""Measurements: `python -m tests.bench` runs all benches, `python -m tests.bench NAME [options]` one of them.

It prints a table. build/bench/report.json has all results of a whole run, build/bench/NAME.json those of one bench.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.bench import whole_run
from tests.bench.environment import environment, load
from tests.bench.feed import say
from tests.bench.measure import Options
from tests.bench.report import Report, merged, table
from tests.bench.whole_run import Kind
from tools.optimised import is_optimised

#: Benches in the order of a whole run: first the short ones with goals, the longest last.
BENCHES = (
    "latency",
    "worker",
    "check_back",
    "end_to_end",
    "door",
    "outbox",
    "log_cost",
    "rolling",
    "client",
    "later",
    "matrix",
    "pending",
    "audit",
    "local",
    "follow",
    "soak",
)
#: Options of the benches that `--quick` runs. Their ratios have a spread after a few short rounds.
QUICK: dict[str, dict[str, object]] = {
    "latency": {"rounds": 3, "seconds": 2, "warm_up": 5},
    "worker": {"rounds": 3, "transactions": 20_000},
    "check_back": {"rounds": 3, "transactions": 3_000},
    "end_to_end": {
        "rounds": 3,
        "sizes": [100],
        "threads": [1, 8, 32],
        "transactions": 30_000,
        "blocking": 4_000,
        "peer": 4_000,
    },
    "door": {"rounds": 3, "threads": [1, 32], "transactions": 2_000},
    "outbox": {
        "rounds": 3,
        "restart": 0.0,
        "backlog": 0,
        "ways": ["txbridge", "txbridge, 4 half partitions", "polled, 50 ms", "txbridge relay"],
        "loads": ["20/s", "200/s", "8 threads", "asyncio 100"],
    },
    "client": {"rounds": 3, "transactions": 10_000, "blocking": 2_000},
    "pending": {"rounds": 3, "checked_rounds": 3, "pending": 20_000, "commits": 10_000},
}
_FOLDER = Path("build/bench")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--rounds",
        dest="all_rounds",
        type=int,
        help="of each bench of a whole run that has rounds (default: what each has, mostly 5)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="every ratio that short rounds give a spread, for a change under review: some ten minutes",
    )
    kinds = parser.add_subparsers(dest="name", title="benches")
    # Only the requested bench is imported: the audit's needs Spark, the others do not.
    wanted = next((argument for argument in sys.argv[1:] if argument in BENCHES), None)
    for name in BENCHES:
        sources = (one for file in (f"{name}.py", f"{name}/__init__.py") for one in Path(__file__).parent.glob(file))
        kind = kinds.add_parser(name, help="".join(one.read_text().splitlines()[0].strip('"') for one in sources))
        if name == wanted:
            module = importlib.import_module(f"tests.bench.{name}")
            kind.description = module.__doc__
            _add_options(kind, module.OPTIONS)
    options = parser.parse_args()
    rounds, quick = (vars(options).pop(name) for name in ("all_rounds", "quick"))
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if not is_optimised():
        say("this CPython was built without --enable-optimizations: all that is measured in Python is a third slower")
    if options.name is None:
        kind = Kind(quick, rounds)
        report = whole_run.measure(_FOLDER, tuple(QUICK) if quick else BENCHES, kind)
        return _finish(kind.report, report)
    if quick:
        vars(options).update(QUICK[options.name])
    if rounds is not None and "rounds" in options:
        options.rounds = rounds
    return _one(options)


def _add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add the options of a bench. The default of each has its type; None stands for a number without a default."""
    for name, (default, what) in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true", help=what)
            continue
        many, one = ("+", default[0]) if isinstance(default, list) else (None, default)
        kind = float if one is None else type(one)
        shown = "" if default is None else " (default %(default)s)"
        parser.add_argument(flag, type=kind, nargs=many, default=default, help=f"{what}{shown}")


def _one(options: argparse.Namespace) -> int:
    """Run one bench and write its report, also when it fails."""
    name = options.name
    before, since = load(), time.monotonic()
    found: dict[str, Any] = {"options": {key: value for key, value in vars(options).items() if key != "name"}}
    try:
        found |= importlib.import_module(f"tests.bench.{name}").run(options)
        found["ratios"] = {what: ratio.report() for what, ratio in found.get("ratios", {}).items()}
    except Exception as error:
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {error}"
    found |= {"load_before": before, "load_after": load(), "seconds": round(time.monotonic() - since, 1)}
    report = merged(environment(), {name: found})
    whole_run.write(_FOLDER / f"{name}.json", report)
    return _finish(f"{name}.json", report)


def _finish(file: str, report: Report) -> int:
    print(table(report), flush=True)
    say(f"written to {_FOLDER / file}")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
