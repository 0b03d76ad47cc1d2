"""`python -m tests.differential`: the same scenarios on a real RocketMQ, on txbridge and through its front door.

Prints a table and writes build/differential/report.json. The exit code is 1 when a fate is not as expected, 2 when
a side could not be started.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from tests.differential.compare import Result, Verdict
from tests.differential.run import OURS, run
from tests.differential.scenarios import SCENARIOS
from tests.differential.txbridge_side import LOGS
from tests.peer.jars import ROCKETMQ_VERSION
from txbridge.errors import TxBridgeError

_REPORT = LOGS / "report.json"
_BY_NAME = {one.name: one for one in SCENARIOS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--scenario", choices=list(_BY_NAME), action="append", help="only this one; may be repeated")
    parser.add_argument("--side", choices=list(OURS), action="append", help="only this side of ours; may be repeated")
    arguments = parser.parse_args()
    chosen = [_BY_NAME[name] for name in arguments.scenario or _BY_NAME]
    # A SIGTERM, too, must end all processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    LOGS.mkdir(parents=True, exist_ok=True)
    # The client logs the exceptions that some scenarios raise on purpose.
    logging.basicConfig(filename=LOGS / "txbridge.log", filemode="w", format="%(asctime)s %(message)s")
    started = time.monotonic()
    try:
        results = run(chosen, arguments.side or tuple(OURS))
    except TxBridgeError as error:
        print(error, file=sys.stderr)
        return 2
    _write(results, time.monotonic() - started)
    _show(results)
    return 0 if all(one.good for one in results) else 1


def _write(results: Sequence[Result], seconds: float) -> None:
    report = {
        "rocketmq": ROCKETMQ_VERSION,
        "load": os.getloadavg(),
        "seconds": round(seconds),
        "results": [asdict(one) for one in results],
    }
    _REPORT.write_text(json.dumps(report, indent=2) + "\n")


def _show(results: Sequence[Result]) -> None:
    table = Table(title=f"RocketMQ {ROCKETMQ_VERSION} and txbridge; the whole of it is in {_REPORT}")
    for name in ("scenario", "side", "RocketMQ", "txbridge", "verdict"):
        table.add_column(name)
    for one in results:
        name = one.scenario if one.transaction == "a" else f"{one.scenario}: {one.transaction}"
        verdict = f"{one.verdict}: {one.expected.row}" if one.verdict is Verdict.BETTER else str(one.verdict)
        table.add_row(name, one.side, str(one.rocketmq or "-"), str(one.ours or "-"), verdict)
    Console(width=120).print(table)
    for one in results:
        if not one.good:
            allowed = " or ".join(map(str, one.expected.rocketmq)) or "the same"
            error = f" {one.error}" if one.error else ""
            expected = f"expected {one.expected.txbridge}; RocketMQ: {allowed}."
            print(f"{one.scenario}: {one.transaction}: {one.side}: {expected}{error}")


if __name__ == "__main__":
    sys.exit(main())
