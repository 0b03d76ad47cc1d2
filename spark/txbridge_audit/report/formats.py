"""The formats of a ledger, and the checks that refuse a folder with a ledger of the other format."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report.filesystems import refuse_without_rename, scheme_of

#: The folder in which Delta Lake records the versions of a table.
DELTA_LOG = "_delta_log"
#: Folder beside the data. Readers of Parquet ignore names that begin with an underscore.
SUMMARY = "_audit"


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


def resolved(path: str) -> str:
    """The path as the same place wherever it is opened: a relative one of this machine is one of our own folder.

    Spark runs in another folder, which is deleted with it.
    """
    folder = local_folder(path)
    return path if folder is None or scheme_of(path) is not None else str(folder.absolute())


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


def refuse_to_continue(
    selection: AuditSelection,
    ledger_path: str | None,
    ledger_format: LedgerFormat = LedgerFormat.PARQUET,
    *,
    with_overview: bool,
) -> None:
    """Raise CouldNotAuditError for options that a continued audit does not take."""
    if ledger_path is None:
        raise CouldNotAuditError("an audit is continued from its ledger: say which with --ledger")
    refuse_without_rename(scheme_of(ledger_path))
    refuse_other_format_locally(ledger_path, ledger_format)
    if selection != AuditSelection():
        raise CouldNotAuditError(
            "a continued audit is about all transactions: leave --since, --until and --only-topic out",
        )
    if with_overview:
        raise CouldNotAuditError(
            "a continued audit reads only what is new, and the page shows all: leave --html out, or audit in full",
        )
