"""The place and the format of a ledger, and the checks that refuse what cannot be written or continued there."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from txbridge.extras import missing_extra
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.selection import AuditSelection

#: The folder in which Delta Lake records the versions of a table.
DELTA_LOG = "_delta_log"
#: Folder beside the data. Readers of Parquet ignore names that begin with an underscore.
SUMMARY = "_audit"
#: The folder with the state of a continued audit.
STATE = "_state"
_NEW = "give --ledger a new folder"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class LedgerFormat(StrEnum):
    """The form in which the rows of a ledger are stored."""

    PARQUET = "parquet"
    #: A Delta Lake table.
    DELTA = "delta"


def _scheme_of(path: str) -> str | None:
    """The scheme of a URI, in lower case; None for a plain path, whose file system only Spark's configuration knows."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else None


def local_folder(path: str, *, continued: bool = False) -> Path | None:
    """The folder of a ledger if it is certainly on this machine, and can be read before Spark starts; else None.

    Spark does not write that of a continued audit: a plain path is always here.
    """
    scheme = _scheme_of(path)
    if scheme == "file":
        return Path(urlsplit(path).path)
    if scheme is None and (continued or not {"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys()):
        return Path(path).absolute()
    return None


def resolved(path: str) -> str:
    """The path as the same place wherever it is opened: a relative one of this machine is one of our own folder.

    Spark runs in another folder, which is deleted with it.
    """
    folder = local_folder(path)
    return path if folder is None or _scheme_of(path) is not None else str(folder.absolute())


def write_summary(text: str, folder: Path) -> None:
    """Write the JSON form of the report beside the ledger, atomically. A ledger without it is not complete."""
    summary = folder / SUMMARY
    summary.mkdir(parents=True, exist_ok=True)
    unfinished = summary / ".report.json"
    unfinished.write_text(text.replace("\n", " ") + "\n", encoding="utf-8")
    unfinished.replace(summary / "report.json")


def refuse_existing_locally(path: str) -> None:
    """Raise CouldNotAuditError when a local folder holds a ledger of any format: it is not overwritten."""
    folder = local_folder(path)
    if folder is not None and next(folder.rglob("*.parquet"), None) is not None:
        raise ledger_exists(path)


def refuse_without_library() -> None:
    """Raise MissingExtraError when the library that writes ledgers is not installed."""
    if error := missing_extra("a ledger", "audit", "pyarrow"):
        raise error


def ledger_exists(path: str) -> CouldNotAuditError:
    """The error for a ledger that exists already."""
    return CouldNotAuditError(f"there is a ledger in {path} already: {_NEW}")


def refuse_to_continue(
    selection: AuditSelection,
    ledger_path: str | None,
    ledger_format: LedgerFormat = LedgerFormat.PARQUET,
    *,
    by_spark: bool,
    with_overview: bool,
) -> None:
    """Raise CouldNotAuditError for options that a continued audit does not take, and for a ledger of another kind."""
    if ledger_path is None:
        raise CouldNotAuditError("an audit is continued from its ledger: say which with --ledger")
    if by_spark:
        raise CouldNotAuditError(
            "--continue and --follow are made by the local engine: leave --engine spark out, or audit in full"
        )
    if ledger_format is not LedgerFormat.PARQUET:
        raise CouldNotAuditError(
            "a continued audit writes Parquet files: leave --ledger-format out, or --continue and --follow"
        )
    folder = local_folder(ledger_path, continued=True)
    if folder is None:
        raise CouldNotAuditError(
            "the state of --continue and --follow is in a folder of this machine: give --ledger one, as file:///... if "
            "need be, and copy what it holds to where you like after each audit; a ledger that is written once may be "
            "anywhere that Spark can write to",
        )
    if (folder / DELTA_LOG).is_dir():
        raise CouldNotAuditError(f"the ledger in {ledger_path} is a Delta Lake table, which is written once: {_NEW}")
    if next((folder / STATE).glob("*.json"), None) is not None:
        raise CouldNotAuditError(f"the ledger in {ledger_path} has the state of an earlier version: {_NEW}")
    if selection != AuditSelection():
        raise CouldNotAuditError(
            "a continued audit is about all transactions: leave --since, --until and --only-topic out",
        )
    if with_overview:
        raise CouldNotAuditError(
            "a continued audit reads only what is new, and the page shows all: leave --html out, or audit in full",
        )
