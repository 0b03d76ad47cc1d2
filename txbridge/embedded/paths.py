"""Folders for the jars and the data of the embedded Kafka."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from txbridge.errors import EnvironmentProblemError, UsageError

MIB = 1024 * 1024


def _xdg(variable: str, fallback: str, env: Mapping[str, str]) -> Path:
    value = env.get(variable, "")
    # The XDG base directory specification: a relative path in these variables is invalid and is ignored.
    return Path(value) if value.startswith("/") else Path.home() / fallback


def cache_root(env: Mapping[str, str] = os.environ) -> Path:
    """The folder of the jars: TXBRIDGE_CACHE_DIR, or XDG_CACHE_HOME/txbridge, or ~/.cache/txbridge."""
    chosen = env.get("TXBRIDGE_CACHE_DIR") or _xdg("XDG_CACHE_HOME", ".cache", env) / "txbridge"
    path = Path(chosen).expanduser().absolute()
    if os.pathsep in str(path):
        raise UsageError(
            f"the cache folder {path} has a {os.pathsep!r} in its name, which a Java class path cannot carry; "
            "name another one with TXBRIDGE_CACHE_DIR"
        )
    return path


def default_data_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The default folder of `txbridge kafka`: XDG_DATA_HOME/txbridge/kafka or ~/.local/share/txbridge/kafka."""
    return _xdg("XDG_DATA_HOME", ".local/share", env) / "txbridge" / "kafka"


def require_free_space(folder: Path, needed: int, purpose: str, advice: str) -> None:
    """Raise EnvironmentProblemError unless `needed` bytes are free in `folder`, which must exist."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentProblemError(
            f"{purpose} needs {needed // MIB} MB, but only {free // MIB} MB are free in {folder}; free some or {advice}"
        )


@contextlib.contextmanager
def explain_os_errors(folder: str, other: str) -> Iterator[None]:
    """Turn an OSError into an EnvironmentProblemError about the folder; `other` says how to use another one."""
    try:
        yield
    except OSError as error:
        cure = "free some space on its disk" if error.errno == errno.ENOSPC else "correct its rights"
        raise EnvironmentProblemError(f"{folder} cannot be written ({error.strerror}): {cure}, or {other}") from error
