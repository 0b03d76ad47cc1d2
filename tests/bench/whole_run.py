"""All benches, one after the other, each in a process of its own. An interrupted run is continued."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.environment import environment
from tests.bench.feed import say
from tests.bench.report import Report, kept, merged


@dataclass(frozen=True)
class Kind:
    """The way in which a whole run measures. A run of another kind is not continued."""

    quick: bool
    rounds: int | None

    @property
    def report(self) -> str:
        """Name of the file. Short rounds are not compared with long ones: in some of them Java is still compiling."""
        return "report-quick.json" if self.quick else "report.json"

    @property
    def options(self) -> list[str]:
        return [*(["--quick"] if self.quick else []), *([] if self.rounds is None else ["--rounds", str(self.rounds)])]


def measure(folder: Path, benches: Sequence[str], kind: Kind, *, fresh: bool = False) -> dict[str, Any]:
    """Run each bench in a process of its own: none inherits another's memory, and a crash ends only one."""
    path, about = folder / kind.report, environment()
    last = json.loads(path.read_text()) if path.exists() else None
    reports: dict[str, Any] = {} if fresh else _of_an_interrupted_run(last, kind, about)
    before = None if last is None else kept(last) if last["finished"] else last["before"]
    if reports:
        say(f"going on after {', '.join(reports)}, measured by a run that was interrupted; --fresh begins anew")
    for number, name in enumerate(benches, 1):
        if name in reports:
            continue
        say(f"--- {name}: {number} of {len(benches)} ---")
        reports[name] = _measured(folder / f"{name}.json", name, kind)
        # Written after each bench, so that an aborted run keeps its results.
        write(path, {**merged(about, reports, before), "kind": asdict(kind), "finished": False})
    report = {**merged(about, reports, before), "kind": asdict(kind), "finished": True}
    write(path, report)
    return report


def write(path: Path, report: Report) -> None:
    """Write the report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n")


def _of_an_interrupted_run(last: Report | None, kind: Kind, about: Report) -> dict[str, Any]:
    """Results of an interrupted run of the same commit and kind. Failed benches are left out and measured again."""
    if last is None or last["finished"] or last["kind"] != asdict(kind) or last["versions"] != about["versions"]:
        return {}
    return {name: found for name, found in last["benches"].items() if "error" not in found}


def _measured(path: Path, name: str, kind: Kind) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.bench", *kind.options, name]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if not path.exists():
        return {"error": f"it ended with exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(path.read_text())["benches"][name]
    return found
