"""An import without its extra ends in one sentence that names it."""

from __future__ import annotations

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
        ("txbridge_rocketmq.door_process", "grpc", "rocketmq"),
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
