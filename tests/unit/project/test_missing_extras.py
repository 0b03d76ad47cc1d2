"""An import without its extra ends in one sentence that names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "missing", "extra"),
    [
        ("txbridge_sqlalchemy", "sqlalchemy", "sqlalchemy"),
        ("txbridge_sqlalchemy.inbox", "sqlalchemy", "sqlalchemy"),
        ("txbridge_django", "django", "django"),
        ("txbridge_rocketmq.door_process", "lz4", "rocketmq"),
        ("txbridge_rocketmq.door_process", "hpack", "rocketmq"),
        ("txbridge_audit.engines.spark.tasks", "pyspark", "audit"),
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
    assert sentence == f"txbridge.extras.MissingExtraError: {needs}"
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
