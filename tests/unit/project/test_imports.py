"""Imports: the modules that each loads, what it says without its extra, and the modules that one decision passes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import FrameType

import pytest

from tests.simulator.simulation import Simulation
from tests.support.source import ROOT
from txbridge.core.decision_record import DecisionEvent, DecisionRecord
from txbridge.core.fresh_halves import FreshHalves, Run
from txbridge.core.plan.choice import EndChoice, EndSlice
from txbridge.core.plan.draft import Draft
from txbridge.worker.partitions import PartitionOwner
from txbridge.worker.transaction.writer import Contents


@pytest.mark.parametrize(
    ("package", "missing", "extra"),
    [
        ("txbridge_sqlalchemy", "sqlalchemy", "sqlalchemy"),
        ("txbridge_sqlalchemy.inbox", "sqlalchemy", "sqlalchemy"),
        ("txbridge_django", "django", "django"),
        ("txbridge_rocketmq.door_process", "lz4", "rocketmq"),
        ("txbridge_rocketmq.door_process", "hpack", "rocketmq"),
        ("txbridge_audit.engines.spark.spark_audit", "pyspark", "audit-spark"),
        ("txbridge.operations", "pydantic", "operations"),
        ("txbridge.testing", "faust", "testing"),
        ("txbridge.testing.sandbox", "structlog", "testing"),
        ("txbridge.testing.containers", "testcontainers", "testing"),
    ],
)
def test_an_import_without_its_extra_names_the_extra(package: str, missing: str, extra: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import {package}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    *trace, sentence = done.stderr.splitlines()
    refuses = package if missing == "testcontainers" else re.match(r"txbridge\.(testing|operations)|\w+", package)[0]
    needs = f"{refuses} needs {missing}: pip install 'txbridge[{extra}]'"
    assert sentence == f"txbridge.errors.MissingExtraError: {needs}"
    # The import itself, and the package that refuses it.
    assert len([line for line in trace if line.startswith("  File ")]) == 2, done.stderr


def test_operations_need_no_more_than_their_extra() -> None:
    """Those of the commands and of the worker are not among it."""
    blocked = ("typer", "rich", "structlog", "faust", "aiokafka", "prometheus_client", "sqlalchemy", "opentelemetry")
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked})); from txbridge.operations import *"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


#: Whatever a user may import. `txbridge` itself needs no extra.
PUBLIC = (
    "txbridge",
    "txbridge.embedded",
    "txbridge.operations",
    "txbridge.testing",
    "txbridge.testing.containers",
    "txbridge.testing.memory",
    "txbridge_audit",
    "txbridge_django",
    "txbridge_rocketmq",
    "txbridge_sqlalchemy",
)
IMPORTS = """
import importlib, json, sys
from importlib.metadata import packages_distributions

found = {}
for module in set(packages_distributions()) - set(sys.stdlib_module_names) - {"confluent_kafka", "typing_extensions"}:
    if not module.startswith("txbridge"):
        sys.modules[module] = None
for package in sys.argv[1:]:
    try:
        module = importlib.import_module(package)
        for name in module.__all__:
            try:
                getattr(module, name)
            except ImportError as error:
                found[f"{package}.{name}"] = f"{type(error).__name__}: {error}"
    except ImportError as error:
        found[package] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def test_every_import_without_any_extra_works_or_names_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS, *PUBLIC], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [name for name, said in found.items() if not re.match(r"MissingExtraError: .* pip install '", said)] == []
    assert {name.partition(".")[0] for name in found} == {*(name.partition(".")[0] for name in PUBLIC)}
    # The client, and the judge of the audit.
    assert [
        name for name in found if re.match(r"txbridge\.[A-Z]|txbridge_audit\.(Entry|Place|Tally|Could)", name)
    ] == []


ROOTS = {
    "txbridge": ROOT,
    "txbridge_audit": ROOT / "spark",
    "txbridge_sqlalchemy": ROOT / "connectors",
    "txbridge_rocketmq": ROOT / "connectors",
}


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
        "from txbridge import AsyncTransactionProducer, TransactionProducer\nimport txbridge.client.runtime"
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


PACKAGE = f"{ROOT}/txbridge/"
#: One decision on its way: the objects that hold it.
HOLDS = (DecisionEvent, DecisionRecord, FreshHalves, Run, EndSlice, EndChoice, Draft, Contents)
#: On the way as well: Faust is not part of the simulation, and some modules have only bytes and offsets of it.
BEYOND = {"worker/app.py", "worker/partitions.py", "kafka/partition_reader.py", "core/checkpoint.py"}
#: A schedule with fresh half messages that are decided together.
SEED = 5


def _traced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if (
            event == "return"
            and file.startswith(PACKAGE)
            and any(isinstance(one, HOLDS) for one in frame.f_locals.values())
        ):
            found.add(file.removeprefix(PACKAGE))

    run = PartitionOwner.run

    def run_traced(self: PartitionOwner) -> None:
        # Each process of the simulation is a greenlet, with a trace of its own.
        sys.setprofile(note)
        run(self)

    monkeypatch.setattr(PartitionOwner, "run", run_traced)
    assert Simulation(SEED).run().violation is None
    sys.setprofile(None)
    return found


def test_the_page_names_the_modules_that_a_decision_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("### One END")[1].split("### One half message")[0]
    table = set(re.findall(r"^\| `txbridge/(\S+)`", section, re.MULTILINE))
    named = set(re.findall(r"`(?:txbridge/)?(\S+\.py)`", section))
    traced = _traced(monkeypatch)
    assert traced <= named
    assert table - traced == BEYOND
