"""The cache of what RocketMQ's clients need: fetched or built once, checked against a lock file here."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from txbridge.embedded.jars import cache_root
from txbridge.errors import EnvironmentProblemError


def cached(name: str, fill: Callable[[Path], object]) -> Path:
    """A folder of the cache, which `fill` fills if it is not there."""
    folder = cache_root() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Filled beside it and renamed, so that a folder of this name is always complete.
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
        try:
            fill(fresh)
            fresh.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
            if not folder.is_dir():  # another process may have been quicker
                fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def named_by(prefix: str, *files: Path) -> str:
    """A name for what these files determine."""
    return f"{prefix}-{hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()[:12]}"


def run(command: Sequence[str], folder: Path, timeout: float, environment: Mapping[str, str] | None = None) -> None:
    """Run a tool of another language. Raises EnvironmentProblemError with the end of its output if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise EnvironmentProblemError(f"{' '.join(command)} in {folder} failed:\n{done.stderr[-3000:]}")
