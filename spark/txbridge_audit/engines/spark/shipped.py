"""The code of the tasks as a zip file that Spark sends to its executors."""

from __future__ import annotations

import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession

from txbridge_audit.engines.spark.spark_session import own_folder

#: What the tasks import (tasks.py) is among this. A test compares.
_PARTS = {
    "txbridge": (
        "__init__.py",
        "errors.py",
        "extras.py",
        "text.py",
        "core/__init__.py",
        "core/murmur2.py",
        "core/names.py",
    ),
    "txbridge_audit": ("**/*.py",),
}
#: The sessions that have it.
_SHIPPED: set[str] = set()
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


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
