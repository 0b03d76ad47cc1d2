"""The layers of the packages: the imports that each folder may have, and the purity of the core."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import txbridge
from tests.support.source import ROOT, tree_of

PACKAGE = ROOT / "txbridge"

#: By folder (or module) of the package, the ones that it may import.
ALLOWED = {
    "errors": set(),
    "text": {"errors"},
    "log": {"text"},
    "tracing": set(),
    "backoff": {"errors"},
    "deadline": set(),
    "murmur2": set(),
    "failpoints": set(),
    "interrupts": set(),
    "masking": set(),
    "proof": set(),
    "core": set(),
    "kafka": {"core", "errors", "log", "text"},
    "topics": {"core", "kafka", "errors", "text"},
    "config": {"core", "kafka", "errors"},
    "subject": {"config", "errors"},
    "web": {"errors", "log"},
    "client": {"core", "kafka", "topics", "errors", "text", "tracing"},
    "operations": {"core", "kafka", "topics", "config", "subject", "errors", "log", "text"},
    "worker": {"core", "kafka", "topics", "config", "operations", "web", "errors", "log", "text", "tracing"},
    "embedded": {"errors", "text"},
    "doctor": {"core", "kafka", "topics", "config", "operations", "subject", "errors", "text"},
    # The entrances: none of the above imports them.
    "asgi": {"client"},
    "__main__": {"cli"},
    "broker": {"config", "worker"},
    "cli": {
        *("core", "kafka", "topics", "config", "subject", "client", "operations", "worker", "embedded", "doctor"),
        *("web", "errors", "log", "text"),
    },
    "testing": {*("core", "kafka", "topics", "config", "client", "operations", "worker", "embedded", "errors", "log")},
}
#: The other packages by folder, and the parts of txbridge that each may import.
BESIDE = {
    "spark/txbridge_audit": {"core", "kafka", "murmur2", "subject", "errors", "text"},
    "connectors/txbridge_django": {"core", "client", "errors", "text"},
    # An outbox of the client on one side, a relay like the worker on the other.
    "connectors/txbridge_sqlalchemy": {"core", "kafka", "murmur2", "topics", "client", "errors"},
    # A door is a client on one side, and a server like the worker on the other.
    "connectors/txbridge_rocketmq": {
        *("core", "kafka", "murmur2", "topics", "config", "client", "web", "doctor", "errors", "log")
    },
}
#: Modules without a layer: all but the core may import them.
EVERYWHERE = {"backoff", "deadline", "failpoints", "interrupts", "masking", "proof"}
#: The folders inside of a package. Each imports from those on its left alone.
ROOMS = {
    "txbridge/worker": ("faust", "observe", "transaction", "gates", "ingest", "takeover", "turn", "http"),
    "txbridge/client": ("base", "kafka", "prepare", "decide", "checks", "flow"),
    "spark/txbridge_audit": ("protocol", "judge", "cluster", "report", "ledger", "engines"),
}
#: Stages of the client: none knows another one. `flow` leads through them all.
STAGES_OF_THE_CLIENT = {"prepare", "decide", "checks"}
#: Imports of the core, from the standard library and others: nothing that reads a clock, a file or a socket.
PURE = {
    *("__future__", "array", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq"),
    *("itertools", "json", "marshal", "math", "re", "struct", "sys", "typing", "urllib.parse"),
    # It parses JSON, without pydantic itself.
    "pydantic_core",
}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            module = node.module or ""
            is_folder = (ROOT / module.replace(".", "/")).is_dir()
            yield from (f"{module}.{name.name}" for name in node.names) if is_folder else (module,)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _files(folder: str) -> list[Path]:
    found = [*(PACKAGE / folder).rglob("*.py"), *PACKAGE.glob(f"{folder}.py")]
    assert found, f"there is no {folder} any more"
    return found


def _layer(name: str) -> str | None:
    """The folder of txbridge that an import is from."""
    package, _, rest = name.partition(".")
    if package != "txbridge":
        return None
    # Names that `from txbridge import ...` offers are defined in a folder, too.
    first = rest.partition(".")[0]
    home = getattr(getattr(txbridge, first, None), "__module__", name) if first in txbridge.__all__ else name
    return home.split(".")[1]


def _beyond(allowed: set[str], files: Iterable[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in _imports(file)
        if (layer := _layer(name)) is not None and layer not in allowed
    ]


@pytest.mark.parametrize("folder", ALLOWED)
def test_no_import_runs_back_up(folder: str) -> None:
    allowed = {folder, *ALLOWED[folder]} | (EVERYWHERE if folder != "core" else set())
    assert _beyond(allowed, _files(folder)) == []


def test_every_folder_and_every_module_has_its_layer() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__"} == ALLOWED.keys()


@pytest.mark.parametrize("folder", BESIDE)
def test_a_package_beside_it_imports_what_it_may(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    # The program for spark-submit is an entrance to the command line.
    entrances = {ROOT / "spark/txbridge_audit/job.py"}
    assert files
    assert _beyond(BESIDE[folder] | EVERYWHERE, set(files) - entrances) == []


def test_nothing_but_the_command_line_imports_a_package_beside_it() -> None:
    """Each is an extra: a service that sends does not have them."""
    beside = {Path(folder).name for folder in BESIDE}
    importing = {
        file.relative_to(PACKAGE).parts[0]
        for file in PACKAGE.rglob("*.py")
        if any(name.partition(".")[0] in beside for name in _imports(file))
    }
    assert importing == {"cli"}


def test_of_the_core_the_audit_knows_the_names_alone() -> None:
    """The audit has rules of its own, so that it finds errors in the worker's rules."""
    files = (ROOT / "spark/txbridge_audit").rglob("*.py")
    assert {name for file in files for name in _imports(file) if _layer(name) == "core"} == {"txbridge.core.names"}


@pytest.mark.parametrize(("package", "rooms"), ROOMS.items())
def test_no_arrow_between_the_rooms_of_a_package_runs_back(package: str, rooms: tuple[str, ...]) -> None:
    dotted = Path(package).relative_to("spark" if package.startswith("spark") else ".").as_posix().replace("/", ".")
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders == set(rooms)
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for number, room in enumerate(rooms)
        for file in (ROOT / package / room).rglob("*.py")
        for name in _imports(file)
        if name.startswith(tuple(f"{dotted}.{later}." for later in rooms[number + 1 :]))
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    roots = [PACKAGE, *(ROOT / folder for folder in BESIDE)]
    files = {_dotted(file): file for root in roots for file in root.rglob("*.py")}
    waiting = {
        module: {name for name in _imports(file) if name in files and name != module} for module, file in files.items()
    }
    while free := {module for module, imported in waiting.items() if not imported & waiting.keys()}:
        waiting = {module: imported for module, imported in waiting.items() if module not in free}
    assert waiting == {}


def _dotted(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts[0] in {"spark", "connectors"} :]).removesuffix(".__init__")


@pytest.mark.parametrize("stage", [*sorted(STAGES_OF_THE_CLIENT), "kafka"])
def test_no_stage_of_the_client_knows_another_one(stage: str) -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in _files(f"client/{stage}")
        for name in _imports(file)
        if name.startswith("txbridge.client.") and name.split(".")[2] in STAGES_OF_THE_CLIENT - {stage}
    ]
    assert wrong == []


def test_operations_are_known_to_the_pages_of_the_worker_alone() -> None:
    knowing = {
        file.relative_to(PACKAGE).parts[:2]
        for file in _files("worker")
        if any(name.startswith("txbridge.operations") for name in _imports(file))
    }
    assert knowing <= {("worker", "http")}


def test_the_core_is_pure() -> None:
    used = {name for file in _files("core") for name in _imports(file) if not name.startswith("txbridge.")}
    assert {name for name in used if name not in PURE and name.partition(".")[0] not in PURE} == set()


def test_the_core_loads_no_library_that_reads_or_writes() -> None:
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in _files("core")]
    check = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & {"confluent_kafka", "faust", "aiokafka", "prometheus_client", "structlog", "pydantic"} == set()
