"""The formats of a ledger, and the checks that refuse a folder with a ledger of the other format."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from txbridge_audit.engines.spark.read.filesystems import scheme_of
from txbridge_audit.errors import CouldNotAuditError

#: The folder in which Delta Lake records the versions of a table.
DELTA_LOG = "_delta_log"


class LedgerFormat(StrEnum):
    """The form in which the rows of a ledger are stored."""

    PARQUET = "parquet"
    #: A Delta Lake table.
    DELTA = "delta"


def local_folder(path: str) -> Path | None:
    """The folder of a ledger if it is certainly on this machine, and can be read before Spark starts; else None."""
    scheme = scheme_of(path)
    if scheme == "file":
        return Path(urlsplit(path).path)
    if scheme is None and not {"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys():
        return Path(path)
    return None


def refuse_existing_locally(path: str) -> None:
    """Raise CouldNotAuditError when a local folder holds a ledger of any format: it is not overwritten."""
    folder = local_folder(path)
    if folder is not None and next(folder.rglob("*.parquet"), None) is not None:
        raise ledger_exists(path)


def ledger_exists(path: str) -> CouldNotAuditError:
    """The error for a ledger that exists already."""
    return CouldNotAuditError(f"there is a ledger in {path} already: give --ledger a new folder")


def refuse_other_format_locally(path: str, form: LedgerFormat) -> None:
    """Raise CouldNotAuditError when the ledger that is to be continued in a local folder has another format."""
    folder = local_folder(path)
    if folder is not None and folder.is_dir():
        names = [entry.name for entry in folder.iterdir()]
        refuse_other_format(path, form, names)


def refuse_other_format(path: str, form: LedgerFormat, names: list[str]) -> None:
    """The same, given the names in the folder. A ledger without rows may still take either format."""
    is_delta, is_parquet = DELTA_LOG in names, any(name.startswith("step=") for name in names)
    if form is LedgerFormat.PARQUET and is_delta:
        raise CouldNotAuditError(
            f"the ledger in {path} is a Delta Lake table: continue it with --ledger-format delta, "
            "or give --ledger a new folder"
        )
    if form is LedgerFormat.DELTA and is_parquet and not is_delta:
        raise CouldNotAuditError(
            f"the ledger in {path} is stored as Parquet: continue it without --ledger-format delta, "
            "or give --ledger a new folder"
        )
