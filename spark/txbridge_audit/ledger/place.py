"""The place and the format of a ledger, and the checks that refuse what cannot be written or continued there."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditSelection

#: Folder beside the data. Readers of Parquet ignore names that begin with an underscore.
SUMMARY = "_audit"
#: The folder with the state of a continued audit.
STATE = "_state"
_NEW = "give --ledger a new folder"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def _scheme_of(path: str) -> str | None:
    """The scheme of a URI, in lower case; None for a plain path, whose file system only Spark's configuration knows."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else None


def local_folder(path: str, *, by_local_engine: bool = False) -> Path | None:
    """The folder of a ledger if it is certainly on this machine, and can be read before Spark starts; else None.

    A plain path is always here if the local engine writes there.
    """
    scheme = _scheme_of(path)
    if scheme == "file":
        return Path(urlsplit(path).path)
    if scheme is None and (
        by_local_engine or not {"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys()
    ):
        return Path(path).absolute()
    return None


def resolved(path: str) -> str:
    """The path as the same place wherever it is opened: a relative one of this machine is one of our own folder.

    Spark runs in another folder, which is deleted with it.
    """
    folder = local_folder(path)
    return path if folder is None or _scheme_of(path) is not None else str(folder)


def prepare_folder(folder: Path) -> None:
    """Make a new folder for a ledger.

    Raises CouldNotAuditError when something is there, which an audit would mix with its own files or delete, and when
    nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.iterdir(), None) is not None:
            raise ledger_exists(folder) if _is_complete(folder) else _not_empty(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise cannot_keep(folder, error) from error


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Claim a prepared folder for the files of one audit, which are deleted if it fails.

    Raises CouldNotAuditError. Of two audits at once, one does.
    """
    try:
        (folder / SUMMARY).mkdir()
    except FileExistsError:
        raise _not_empty(folder) from None
    except OSError as error:
        raise cannot_keep(folder, error) from error
    try:
        yield
    except BaseException:
        for made in (*folder.glob("day=*"), folder / SUMMARY):
            shutil.rmtree(made, ignore_errors=True)
        raise


def write_summary(text: str, folder: Path) -> None:
    """Write the JSON form of the report beside the ledger, atomically. A ledger without it is not complete.

    Raises CouldNotAuditError.
    """
    summary = folder / SUMMARY
    unfinished = summary / ".report.json"
    try:
        summary.mkdir(exist_ok=True)
        unfinished.write_text(text.replace("\n", " ") + "\n", encoding="utf-8")
        unfinished.replace(summary / "report.json")
    except OSError as error:
        raise cannot_keep(folder, error) from error


def _is_complete(folder: Path) -> bool:
    written = (path for path in folder.glob(f"{SUMMARY}/*") if not path.name.startswith("."))
    return next(written, None) is not None or (folder / STATE).is_dir()


def ledger_exists(path: object) -> CouldNotAuditError:
    """The error for a place where a ledger, or something else, is already."""
    return CouldNotAuditError(f"there is a ledger in {path} already, or something else: {_NEW}")


def _not_empty(folder: Path) -> CouldNotAuditError:
    return CouldNotAuditError(
        f"{folder} is not empty, and no ledger there is complete: {_NEW}, or delete this one if an audit that was "
        "killed has left it"
    )


def cannot_keep(folder: Path, error: Exception) -> CouldNotAuditError:
    """The error for a ledger whose files cannot be written."""
    return CouldNotAuditError(f"the ledger in {folder} cannot be kept there ({error}): check the folder and the disk")


def continued_folder(
    selection: AuditSelection, ledger_path: str | None, *, by_spark: bool, with_overview: bool
) -> Path:
    """The folder of a continued audit.

    Raises CouldNotAuditError for options that a continued audit does not take, and for a ledger of another kind.
    """
    if ledger_path is None:
        raise CouldNotAuditError("an audit is continued from its ledger: say which with --ledger")
    if by_spark:
        raise CouldNotAuditError(
            "--continue and --follow are made by the local engine: leave --engine spark out, or audit in full"
        )
    folder = local_folder(ledger_path, by_local_engine=True)
    if folder is None:
        raise CouldNotAuditError(
            "the state of --continue and --follow is in a folder of this machine: give --ledger one, as file:///... if "
            "need be, and copy what it holds to where you like after each audit; a ledger that is written once may be "
            "anywhere that Spark can write to"
        )
    if folder.is_dir() and not (folder / STATE).is_dir() and next(folder.iterdir(), None) is not None:
        raise CouldNotAuditError(f"what is in {ledger_path} was not begun with --continue or --follow: {_NEW}")
    if selection != AuditSelection():
        raise CouldNotAuditError(
            "a continued audit is about all transactions: leave --since, --until and --only-topic out"
        )
    if with_overview:
        raise CouldNotAuditError(
            "a continued audit reads only what is new, and the page shows all: leave --html out, or audit in full"
        )
    return folder
