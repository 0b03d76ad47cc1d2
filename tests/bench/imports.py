"""Time of `from txbridge import TransactionProducer` in a fresh interpreter, against `import confluent_kafka`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

from tests.bench.measure import Ratio, summary

OURS, THEIRS = "from txbridge import TransactionProducer", "import confluent_kafka"
#: An import does no waiting once its files are in memory. So this is its duration on a quiet machine, too.
_MS = "ms of processor time"


OPTIONS = {"rounds": (15, "interpreters of each")}


def run(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for number in range(options.rounds + 1):
        for statement, times in found.items():
            milliseconds = import_time(statement) * 1e3
            if number:  # The first run reads the files from disk and writes their byte code.
                times.append(milliseconds)
    # The least of each counts: everything else on the machine can only add to it.
    least = {statement: min(times) for statement, times in found.items()}
    each = [ours / theirs for ours, theirs in zip(found[OURS], found[THEIRS], strict=True)]
    ratio = Ratio(least[OURS] / least[THEIRS], 1.5, at_most=True, rounds=each)
    return {
        "figures": {statement: {_MS: summary(times)} for statement, times in found.items()},
        "ratios": {"import of the client, to confluent_kafka's": ratio},
    }


def import_time(statement: str) -> float:
    """Processor time (s) of a statement in an interpreter that has just started."""
    program = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    # A `.pth` file of an editable installation would load modules beforehand. -S leaves such files out.
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(done.stdout)
