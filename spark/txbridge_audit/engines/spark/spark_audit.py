"""One audit by Spark, in a session of its own or in the one that is given.

The mentions of each transaction are brought together once, and judged in the tasks, whose code is sent as a zip file.
The ledger is Parquet, wherever Spark can write to.
"""

from __future__ import annotations

import tempfile
import zipfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.run import audit, until_leaders_stay
from txbridge_audit.engines.spark.spark_rows import SparkRows
from txbridge_audit.engines.spark.spark_session import elections, own_folder, spark_session
from txbridge_audit.ledger.place import SUMMARY, ledger_exists
from txbridge_audit.report.model import AuditReport

#: What the tasks import (tasks.py) is among this. A test compares.
_PARTS = {
    "txbridge": (
        *("__init__.py", "errors.py", "masking.py", "murmur2.py", "text.py"),
        *("core/__init__.py", "core/names.py"),
    ),
    "txbridge_audit": ("**/*.py",),
}
#: The sessions that have it.
_SHIPPED: set[str] = set()
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def spark_audit(
    source: AuditedTopics, plan: Plan, *, spark: SparkSession | None, ledger_path: str | None, with_overview: bool
) -> AuditReport:
    """See `txbridge_audit.audit.run_audit`."""
    with spark_session(spark, source.say) as session:
        if ledger_path is not None:
            _refuse_existing(session, ledger_path)
        ship(session)

        def attempt() -> AuditReport:
            with elections(), closing(SparkRows(session, source.settings, ledger_path)) as rows:
                return audit(source, plan, rows, with_ledger=ledger_path is not None, with_overview=with_overview)

        report = until_leaders_stay(source.say, attempt)
        if ledger_path is not None:
            # The JSON form of the report. A ledger without it is not complete.
            line = session.createDataFrame([(report.to_json().replace("\n", " "),)], "value string")
            line.coalesce(1).write.mode("overwrite").text(f"{ledger_path}/{SUMMARY}")
    return report


def ship(spark: SparkSession) -> None:
    """Send the code to the executors of a session, once."""
    # Spark Connect keeps files for each session, and the audit uses the one that is given.
    name = str(getattr(spark, "session_id", None) or spark.conf.get("spark.app.id"))
    if name in _SHIPPED:
        return
    _SHIPPED.add(name)
    # Executors fetch it when they start, at any time: it is there as long as the session, or this process.
    folder = own_folder(spark)
    if folder is None:
        _FOLDERS.append(tempfile.TemporaryDirectory(prefix="txbridge-audit-"))
        folder = Path(_FOLDERS[-1].name)
    file = folder / "txbridge_audit_tasks.zip"
    write_zip(file)
    spark.addArtifacts(str(file), pyfile=True)


def write_zip(file: Path) -> None:
    """Write the zip file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for package, patterns in _PARTS.items():
            found = find_spec(package)
            assert found is not None
            root = Path(str(found.origin)).parent
            for pattern in patterns:
                for path in sorted(root.glob(pattern)):
                    out.write(path, f"{package}/{path.relative_to(root)}")


def _refuse_existing(spark: SparkSession, path: str) -> None:
    """Raise CouldNotAuditError when there is anything at the path: writing the ledger would delete it."""
    try:
        # The names of the files alone: a file of another format is no error.
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path).select("path")
        if files.head() is None:
            return
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return
        raise
    raise ledger_exists(path)
