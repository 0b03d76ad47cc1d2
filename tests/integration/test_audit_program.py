"""The audit as a program of its own: `txbridge audit` and `spark-submit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import txbridge_audit
from txbridge_audit.engines.spark.spark_session import CONNECTOR

from tests.support.audit_cases import plant
from tests.support.audit_log import ENVIRONMENT, VIOLATIONS, KafkaLog, transactions
from tests.support.command_line import run, run_txbridge
from tests.support.harness import eventually
from tests.support.quick_spark import INTERPRETED
from txbridge.embedded import EmbeddedKafka

#: Only HotSpot's quick compiler; the optimising one does not pay within seconds.
QUICK = "-XX:TieredStopAtLevel=1"
BIN = Path(sys.executable).parent
SPARK_FOLDER = Path(txbridge_audit.__file__).parent


@pytest.fixture(scope="module")
def log(kafka: EmbeddedKafka) -> KafkaLog:
    """Topics with every case; test_audit.py judges the cases one by one."""
    made = KafkaLog(kafka.bootstrap_servers)
    plant(made)
    return made


@pytest.mark.long
def test_command_line(log: KafkaLog, interpreted: dict[str, str], tmp_path: Path) -> None:
    """`txbridge audit` with its own Spark prints only the report on stdout, and writes JSON to the given file."""
    target, page, numbers = tmp_path / "report.json", tmp_path / "report.html", tmp_path / "audit.prom"
    arguments = ["--bootstrap-servers", log.servers, "--namespace", log.names.namespace, "--report", str(target)]
    arguments += ["--html", str(page), "--prometheus", str(numbers)]
    environment = ENVIRONMENT | interpreted | {"COLUMNS": "200"}
    done = run_txbridge(
        "audit", "--engine", "spark", *arguments, "--kafka", "socket.timeout.ms=20000", env=environment, cwd=tmp_path
    )
    report = json.loads(target.read_text())
    assert done.returncode == 1, done.stderr
    assert re.search(rf"{report['violations']['total']} violations: {report['transactions']} transactions", done.stdout)
    assert re.search(rf"LOST +{VIOLATIONS['LOST']} ", done.stdout)
    assert "starting Spark" in done.stderr
    assert "WARN" not in done.stderr + done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.prom", "report.html", "report.json"]
    text = page.read_text()
    assert f"{report['violations']['total']} violations</h1>" in text
    for part in ("Violations", "Findings", "Oldest pending", "Over time", "Latency", "Checks per group"):
        assert f">{part}" in text
    wrong = [line for line in numbers.read_text().splitlines() if line.startswith("txbridge_audit_violations{")]
    assert any('kind="LOST"' in line and line.endswith(f" {VIOLATIONS['LOST']}.0") for line in wrong)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Spark interprets instead of compiling, because the test has only a few rows."""
    folder = tmp_path_factory.mktemp("conf")
    quick = {**INTERPRETED, "spark.driver.extraJavaOptions": QUICK, "spark.executor.extraJavaOptions": QUICK}
    quick |= {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in quick.items()))
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {"SPARK_CONF_DIR": str(folder), "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def standalone(interpreted: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a standalone master with two workers of one core each."""
    folder = tmp_path_factory.mktemp("standalone")
    environment = os.environ | interpreted | {"SPARK_WORKER_DIR": str(folder), "SPARK_DAEMON_MEMORY": "256m"}
    # What an executor imports of txbridge the driver has sent.
    environment.pop("PYTHONPATH", None)
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{len(started)}.log"
        kind = f"org.apache.spark.deploy.{name}"
        command = [str(spark_class), kind, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))
        return log

    def told(log: Path, pattern: str) -> str:
        found = eventually(lambda: re.search(pattern, log.read_text()), timeout=300)
        assert isinstance(found, re.Match)
        return str(found.group(1))

    try:
        master = told(start("master.Master"), r"Starting Spark master at (spark://\S+)")
        for log in [start("worker.Worker", "--cores", "1", "--memory", "1g", master) for _ in range(2)]:
            told(log, r"(Successfully registered with master)")
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(120)


def submit(log: KafkaLog, environment: dict[str, str], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(
        [
            *(BIN / "spark-submit", *options, SPARK_FOLDER / "job.py"),
            *("--bootstrap-servers", log.servers, "--namespace", log.names.namespace, "--format", "json"),
        ],
        timeout=800,
        env=os.environ | environment,
        cwd=folder,
    )


#: A Python without any package but those in a folder, and one that claims to be another version.
WITHOUT_PACKAGES = '#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {python} -S "$@"\n'
OLDER = """#!{python}
import collections, runpy, sys

sys.version_info = collections.namedtuple("Version", "major minor micro releaselevel serial")(3, 9, 0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("packages", "interpreter", "says"),
    [
        ([], None, f"this Spark lacks Kafka's connector: start it with --packages {CONNECTOR}; "),
        (["--packages", CONNECTOR], WITHOUT_PACKAGES, "the Python of Spark's executors lacks pyarrow or NumPy: "),
        (["--packages", CONNECTOR], OLDER, "Spark's executors have another Python than 3."),
    ],
    ids=["connector", "pyarrow", "Python"],
)
def test_spark_submit_says_what_it_lacks(
    log: KafkaLog, interpreted: dict[str, str], tmp_path: Path, packages: list[str], interpreter: str | None, says: str
) -> None:
    """Spark's own log would be hundreds of lines, with the stack trace of each failed task."""
    environment = dict(interpreted)
    if interpreter is not None:
        python = tmp_path / "python"
        python.write_text(interpreter.format(python=sys.executable, packages=""))
        python.chmod(0o755)
        environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = submit(log, environment, tmp_path, "--master", "local[2]", *packages)
    assert done.returncode == 2, done.stderr[-3000:]
    # spark-submit writes what its Python writes to stderr to its own stdout.
    [error, about] = done.stdout.splitlines()
    assert error.startswith(f"error: {says}")
    assert error.endswith("; --conf spark.log.level=WARN shows Spark's log")
    assert about.startswith(f"(namespace {log.names.namespace} on the cluster at ")
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr


@pytest.mark.long
def test_spark_submit_on_a_standalone_master_with_two_workers(
    log: KafkaLog, interpreted: dict[str, str], standalone: str, tmp_path: Path
) -> None:
    """The executors have pyarrow and NumPy, and nothing of txbridge."""
    packages, python = tmp_path / "packages", tmp_path / "python"
    packages.mkdir()
    for name in ("pyarrow", "numpy", "numpy.libs"):
        (packages / name).symlink_to(Path(pyspark.__file__).parents[1] / name)
    python.write_text(WITHOUT_PACKAGES.format(python=sys.executable, packages=packages))
    python.chmod(0o755)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert (
        "No module named 'txbridge'"
        in run([str(python), "-c", "import pyarrow, txbridge"], env=bare, cwd=tmp_path).stderr
    )
    environment = interpreted | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    options = ("--master", standalone, "--executor-memory", "512m", "--executor-cores", "1")
    done = submit(log, environment, tmp_path, "--packages", CONNECTOR, *options)
    assert done.returncode == 1, done.stderr[-3000:]
    form = json.loads(done.stdout)
    assert (form["violations"]["by_kind"], form["transactions"]) == (VIOLATIONS, len(transactions()))


@pytest.mark.long
def test_spark_connect(log: KafkaLog, tmp_path: Path) -> None:
    """`make audit-spark` has the packages that a client of Spark Connect needs."""
    pytest.importorskip("grpc_status")
    command = [sys.executable, "-m", "tests.support.connect_audit", log.servers, log.names.namespace]
    environment = ENVIRONMENT | {"PYSPARK_PYTHON": sys.executable}
    done = run([*command, str(tmp_path / "ledger")], env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {
        "violations": VIOLATIONS,
        "same_again": True,
        "rows": len(transactions()) + VIOLATIONS["PHANTOM"],
        "settings_are_as_before": True,
    }
