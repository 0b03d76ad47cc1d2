"""All benches, one after the other, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.environment import environment
from tests.bench.feed import say
from tests.bench.report import Report, kept, merged


@dataclass(frozen=True)
class Kind:
    """The way in which a whole run measures."""

    quick: bool
    rounds: int | None

    @property
    def report(self) -> str:
        """Name of the file. Short rounds are not compared with long ones: in some of them Java is still compiling."""
        return "report-quick.json" if self.quick else "report.json"

    @property
    def options(self) -> list[str]:
        return [*(["--quick"] if self.quick else []), *([] if self.rounds is None else ["--rounds", str(self.rounds)])]


def measure(folder: Path, benches: Sequence[str], kind: Kind) -> dict[str, Any]:
    """Run each bench in a process of its own: none inherits another's memory, and a crash ends only one."""
    path, about = folder / kind.report, environment()
    before = kept(json.loads(path.read_text())) if path.exists() else None
    reports: dict[str, Any] = {}
    for number, name in enumerate(benches, 1):
        say(f"--- {name}: {number} of {len(benches)} ---")
        reports[name] = _measured(folder / f"{name}.json", name, kind)
    report = merged(about, reports, before)
    write(path, report)
    return report


def write(path: Path, report: Report) -> None:
    """Write the report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n")


def _measured(path: Path, name: str, kind: Kind) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.bench", *kind.options, name]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if not path.exists():
        return {"error": f"it ended with exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(path.read_text())["benches"][name]
    return found
