"""The modules that an import of the client loads, and the absence of import cycles."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOTS = {
    "txbridge": ROOT,
    "txbridge_audit": ROOT / "spark",
    "txbridge_sqlalchemy": ROOT / "connectors",
    "txbridge_rocketmq": ROOT / "connectors",
}


def modules() -> dict[str, Path]:
    found = {}
    for root, folder in ROOTS.items():
        for path in (folder / root).rglob("*.py"):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(tree: ast.AST) -> set[str]:
    """Our modules that these statements import, at any depth."""
    found = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, "imports name the whole path"
            for alias in statement.names:
                full = f"{statement.module}.{alias.name}"
                found.add(full if full in MODULES else str(statement.module))
    return found & MODULES.keys()


def test_no_import_runs_in_a_circle():
    def at_import(path: Path) -> set[str]:
        # Other imports run later, or only for the type checker.
        statements = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.Import | ast.ImportFrom)]
        return imported(ast.Module(statements, []))

    graph = {name: at_import(path) - {name} for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def loaded_by(statements: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after these statements."""
    program = f"import sys\n{statements}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    # -S and an empty environment exclude additions by a test run or an editable installation.
    path = [*map(str, ROOTS.values()), *(one for one in sys.path if one.endswith("site-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ":".join(path)},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    return set(json.loads(done.stdout))


def test_the_client_loads_confluent_kafka_and_nothing_else_that_is_installed():
    loaded = loaded_by(
        "from txbridge import AsyncTransactionProducer, TransactionProducer\nimport txbridge.client.start"
    )
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    # confluent-kafka imports typing_extensions.
    assert others - {"typing_extensions"} == {"__main__", "confluent_kafka", "txbridge"}


def test_the_front_door_needs_nothing_of_the_workers():
    loaded = loaded_by("import txbridge_rocketmq.door_process, txbridge.cli.rocketmq")
    assert loaded & {"faust", "aiokafka", "mode", "txbridge.worker.app"} == set()


def test_what_a_start_needs_is_not_loaded_by_an_import():
    """`from txbridge import TransactionProducer` takes at most 1.5 times as long as `import confluent_kafka`."""
    loaded = loaded_by("from txbridge import TransactionListener, TransactionProducer")
    assert loaded & {"confluent_kafka.admin", "txbridge.client.runtime", "txbridge.topics.verify"} == set()
    assert loaded_by("import txbridge") & {"confluent_kafka", "txbridge.client"} == set()
