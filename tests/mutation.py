"""Mutation testing of the pure core: plant one small defect at a time and see whether a fast test notices.

    python -m tests.mutation                      # all of txbridge/core: `make mutation`
    python -m tests.mutation draft half_queue     # `make mutation ARGS="draft half_queue"`

mutmut plants the defects, in a copy that holds nothing but the core and the tests that need no more: `tests/unit/core`,
and those of `tests/property`, with a small Hypothesis profile. Prints the figures and writes build/mutation/report.json
with every mutant that no test noticed; a person judges those.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

#: What the mutants' environment has, beside the tree.
_PACKAGES = {*sys.stdlib_module_names, "hypothesis", "pydantic_core", "pytest"}
#: The figures of a module, as the report names them.
_FIGURES = ("killed", "timed_out", "survived", "not_covered")

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


def lay_out(tree: Path, modules: list[str]) -> None:
    """Make a tree with nothing but the core and its tests. The core is pure: any other import would fail."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "txbridge/core", tree / "txbridge/core", ignore=shutil.ignore_patterns("__pycache__"))
    tests = [file for folder in ("unit/core", "property") for file in (ROOT / "tests" / folder).rglob("*.py")]
    for file in set().union(*map(files_of, tests)):
        (there := tree / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)
    for package in ("txbridge", "tests", "tests/support"):
        (tree / package / "__init__.py").touch()
    for module in modules:
        file = tree / MODULES[module]
        file.write_text(without_property_decorators(file.read_text()))
    only = "\n".join(f"    {MODULES[module]}" for module in modules)
    (tree / "setup.cfg").write_text(_CONFIG.format(only=only))


def files_of(test: Path) -> set[Path]:
    """The test and the helpers that it imports, directly or not; none if it needs more than the core."""
    files, open_files = {test}, [test]
    while open_files:
        for file in _imported(open_files.pop()):
            if file is None:
                return set()
            if file not in files and file.is_relative_to(ROOT / "tests"):
                files.add(file)
                open_files.append(file)
    return files


def _imported(file: Path) -> Iterator[Path | None]:
    """The files of tests and of the core that this one imports, and None for what is not in the tree."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [f"{one.name}." for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{one.name}" for one in node.names]
        for name in names:
            if name.partition(".")[0] not in _PACKAGES:
                # What is imported from a module may be a module itself.
                paths = [ROOT / one.replace(".", "/") for one in (name, name.rpartition(".")[0])]
                found = (there for path in paths for there in (path.with_suffix(".py"), path / "__init__.py"))
                there = next(filter(Path.is_file, found), None)
                yield there if there and str(there.relative_to(ROOT)).startswith(("tests/", "txbridge/core/")) else None


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


def collect(tree: Path, module: str) -> tuple[Counter[str], list[dict[str, str]]]:
    """The figures of one module, and its mutants that no test noticed."""
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
            counts[figure := "survived" if code == _SURVIVED else "not_covered"] += 1
            diff = run_mutmut(tree, "show", name, log=BUILD / "show.log")
            survivors.append({"name": name, "module": module, "figure": figure, "diff": diff})
        else:
            raise SystemExit(f"mutant {name} was not judged: exit code {code}")
    return counts, survivors


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
    found = {module: collect(tree, module) for module in modules}
    survivors = [survivor for _, some in found.values() for survivor in some]
    rows = {module: counts for module, (counts, _) in found.items()}
    rows["all"] = sum(rows.values(), Counter())
    for survivor in survivors:
        print(survivor["diff"])
    print(f"{'module':<16}" + "".join(f"{head:>12}" for head in ("mutants", *_FIGURES, "noticed, %")))
    report: dict[str, Any] = {"seconds": round(time.monotonic() - started), "survivors": survivors, "modules": []}
    for module, counts in rows.items():
        total, share = counts.total(), round(100 * (counts["killed"] + counts["timed_out"]) / (counts.total() or 1), 1)
        print(f"{module:<16}" + "".join(f"{one:>12}" for one in (total, *(counts[one] for one in _FIGURES), share)))
        report["modules"].append({"module": module, **counts, "total": total, "percent": share})
    (BUILD / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['seconds']} s; {BUILD / 'report.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
