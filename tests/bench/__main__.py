"""Measurements: `python -m tests.bench NAME [options]` prints JSON and writes build/bench/NAME.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from tests.bench import audit, client, end_to_end, log_cost, pending, rolling, worker

_BENCHES = {
    "audit": audit,
    "client": client,
    "end_to_end": end_to_end,
    "log_cost": log_cost,
    "pending": pending,
    "rolling": rolling,
    "worker": worker,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    kinds = parser.add_subparsers(dest="name", required=True)
    for name, bench in _BENCHES.items():
        bench.add_options(kinds.add_parser(name, description=bench.__doc__))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    report = {
        "bench": options.name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        **_BENCHES[options.name].run(options),
    }
    text = json.dumps(report, indent=2)
    where = Path("build/bench") / f"{options.name}.json"
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(text + "\n")
    print(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
