"""Mutation testing of the pure core: plant one small defect at a time and see whether a fast test notices.

    python -m tests.mutation                      # all of txbridge/core: `make mutation`
    python -m tests.mutation draft half_queue     # `make mutation ARGS="draft half_queue"`

mutmut plants the defects, in a copy that holds nothing but the core and its tests (`tests/unit/core`, and
`tests/property` with a small Hypothesis profile). Prints the figures and writes build/mutation/report.json with every
mutant that no test noticed; a person judges those.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "mutation"
#: The modules with rules and parsers, by the names that the command takes.
MODULES = {
    name: next((ROOT / "txbridge/core").rglob(f"{name}.py")).relative_to(ROOT)
    for name in (
        *("draft", "planner", "half_queue", "states", "dedup", "check_policy", "decision_record"),
        *("half_message", "checkpoint", "timers", "headers", "names"),
    )
}
#: Meaning of mutmut's exit codes of a mutant (its documentation, "exit codes"). All others are defects of the run.
_KILLED, _SURVIVED, _NO_TESTS = frozenset({1, 3}), 0, frozenset({5, 33})
#: A signal or mutmut itself has reported these. An endless loop counts as noticed, as a wrong answer does.
_TIMED_OUT = frozenset({-24, 24, 36, 152, 255})

_CONFIG = """[tool:pytest]
# Only that pytest does not go on to look for the settings of the whole project.
testpaths=tests
markers=
    timeout
    long
[mutmut]
source_paths=txbridge
only_mutate=
{only}
pytest_add_cli_args=
    -p
    no:cacheprovider
    -q
    -m
    not long
pytest_add_cli_args_test_selection=
    tests/unit/core
    tests/property
# The slowest test takes seconds on a loaded machine; five times that, and two seconds for the shortest, is a hang.
timeout_multiplier=5
timeout_constant=2
track_dependencies=false
use_git_change_detection=false
"""


@dataclass(frozen=True)
class Survivor:
    """A planted defect that no test noticed."""

    name: str
    module: str
    tested: bool
    diff: str


@dataclass(frozen=True)
class Figures:
    """The figures of one module."""

    module: str
    killed: int
    timed_out: int
    survived: int
    not_covered: int

    @property
    def total(self) -> int:
        return self.killed + self.timed_out + self.survived + self.not_covered

    @property
    def share(self) -> float:
        return 100 * (self.killed + self.timed_out) / self.total if self.total else 100.0


def lay_out(tree: Path, modules: list[str]) -> None:
    """Make a tree with nothing but the core and its tests. The core is pure: any other import would fail."""
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("txbridge/core", "tests/unit/core", "tests/property"):
        # These are about the client, the front door and SQL.
        leave_out = shutil.ignore_patterns("__pycache__", "test_fuzzed_checks.py", "test_rocketmq_[fg]*", "test_sql_*")
        shutil.copytree(ROOT / folder, tree / folder, ignore=leave_out)
    for package in ("txbridge", "tests", "tests/support"):
        (tree / package).mkdir(exist_ok=True)
        (tree / package / "__init__.py").touch()
    for helper in ("fuzz.py", "partition_builder.py"):
        shutil.copy(ROOT / "tests/support" / helper, tree / "tests/support")
    for module in modules:
        file = tree / MODULES[module]
        file.write_text(without_property_decorators(file.read_text()))
    only = "\n".join(f"    {MODULES[module]}" for module in modules)
    (tree / "setup.cfg").write_text(_CONFIG.format(only=only))


def without_property_decorators(source: str) -> str:
    """Replace property decorators by `x = property(_get_x)`: mutmut leaves decorated functions alone."""
    lines = source.splitlines()
    for node in sorted(ast.walk(ast.parse(source)), key=lambda node: getattr(node, "lineno", 0), reverse=True):
        if not isinstance(node, ast.FunctionDef) or len(node.decorator_list) != 1 or node.end_lineno is None:
            continue
        decorator = node.decorator_list[0]
        if isinstance(decorator, ast.Name) and decorator.id == "property":
            indent = " " * node.col_offset
            lines.insert(node.end_lineno, f"\n{indent}{node.name} = property(_get_{node.name})")
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(f"def {node.name}", f"def _get_{node.name}", 1)
            del lines[decorator.lineno - 1]
    return "\n".join(lines) + "\n"


def run_mutmut(tree: Path, *arguments: str, log: Path) -> str:
    """Run mutmut in the tree and return its output, which goes into a file meanwhile."""
    with log.open("w") as output:
        result = subprocess.run(
            [sys.executable, "-m", "mutmut", *arguments],
            cwd=tree,
            env={**os.environ, "HYPOTHESIS_PROFILE": "small"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    said = log.read_text()
    if result.returncode != 0:
        raise SystemExit(f"mutmut ended with {result.returncode}; see {log}\n{said[-2000:]}")
    return said


def collect(tree: Path, module: str) -> tuple[Figures, list[Survivor]]:
    """The results of the mutants of one module."""
    meta = tree / "mutants" / f"{MODULES[module]}.meta"
    codes: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
    counts: Counter[str] = Counter()
    survivors = []
    for name, code in codes.items():
        if code in _KILLED:
            counts["killed"] += 1
        elif code in _TIMED_OUT:
            counts["timed_out"] += 1
        elif code == _SURVIVED or code in _NO_TESTS:
            counts["survived" if code == _SURVIVED else "not_covered"] += 1
            diff = run_mutmut(tree, "show", name, log=BUILD / "show.log")
            survivors.append(Survivor(name, module, code == _SURVIVED, diff))
        else:
            raise SystemExit(f"mutant {name} was not judged: exit code {code}")
    figures = Figures(module, counts["killed"], counts["timed_out"], counts["survived"], counts["not_covered"])
    return figures, survivors


def main() -> int:
    """Run mutmut, print the figures and write the report.

    The exit code is 0 even if mutants survive: a person judges them.
    """
    modules = sys.argv[1:] or list(MODULES)
    unknown = sorted(set(modules) - set(MODULES))
    if unknown:
        raise SystemExit(f"no such module of the core: {', '.join(unknown)}; there are {', '.join(MODULES)}")
    tree, started = BUILD / "tree", time.monotonic()
    lay_out(tree, modules)
    run_mutmut(tree, "run", "--max-children", str(os.cpu_count() or 1), log=BUILD / "mutmut.log")
    found = [collect(tree, module) for module in modules]
    survivors = [survivor for _, some in found for survivor in some]
    rows = [figures for figures, _ in found]
    for survivor in survivors:
        print(survivor.diff)
    print(f"{'module':<16} {'mutants':>8} {'killed':>7} {'hang':>5} {'survived':>9} {'no test':>8} {'noticed':>8}")
    total = Figures(
        "all", *(sum(getattr(row, name) for row in rows) for name in ("killed", "timed_out", "survived", "not_covered"))
    )
    for row in [*rows, total]:
        print(
            f"{row.module:<16} {row.total:>8} {row.killed:>7} {row.timed_out:>5} {row.survived:>9} "
            f"{row.not_covered:>8} {row.share:>7.1f}%"
        )
    report = {
        "seconds": round(time.monotonic() - started),
        "modules": [{**asdict(row), "total": row.total, "percent": round(row.share, 1)} for row in [*rows, total]],
        "survivors": [asdict(survivor) for survivor in survivors],
    }
    (BUILD / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['seconds']} s; {BUILD / 'report.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
