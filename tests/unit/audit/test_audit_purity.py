"""The modules that the rooms of the audit load: the judge only its own, a task of Spark only what it was sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from txbridge_audit.engines.spark.spark_audit import write_zip

ROOT = Path(__file__).parents[3]


def loaded_by(statements: str, *path: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after these statements, with this path besides Python's own."""
    program = f"import sys\nsys.path[:0] = {list(path)!r}\n{statements}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60, env={}, cwd="/"
    )
    return set(done.stdout.split())


def test_the_judge_needs_nothing_but_python() -> None:
    rooms = ("protocol.client_records", "protocol.worker_records", "judge.verdict", "judge.evidence", "judge.strays")
    reports = ("report.sums", "report.entries")
    imports = "\n".join(f"import txbridge_audit.{room}" for room in (*rooms, *reports))
    loaded = loaded_by(imports, str(ROOT), str(ROOT / "spark"))
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert others == {"__main__", "txbridge", "txbridge_audit"}
    ours = {name for name in loaded if name.startswith("txbridge.")}
    assert ours <= {
        "txbridge.core",
        "txbridge.murmur2",
        "txbridge.core.names",
        "txbridge.text",
        "txbridge.errors",
        "txbridge.masking",
    }


def test_the_tasks_of_spark_are_sent_all_that_they_import(tmp_path: Path) -> None:
    file = tmp_path / "tasks.zip"
    write_zip(file)
    # Only Arrow and NumPy are installed on the executors.
    others = ("pyarrow", "pyarrow.compute", "numpy", "pyspark")
    stand_in = f"import types\nfor name in {others}:\n    sys.modules[name] = types.ModuleType(name)"
    schema = "sys.modules['pyarrow'].__getattr__ = lambda name: lambda *args, **more: None"
    spec = "sys.modules['pyspark'].__spec__ = None"
    loaded = loaded_by(f"{stand_in}\n{schema}\n{spec}\nimport txbridge_audit.engines.tasks", str(file))
    assert "txbridge_audit.judge.verdict" in loaded
    assert not {name for name in loaded if name.startswith(("confluent_kafka", "pydantic", "txbridge.kafka"))}
