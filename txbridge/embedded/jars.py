"""The cache of Kafka's jars. A missing or altered jar is an error that names the file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from txbridge.deadline import Deadline
from txbridge.embedded.artifacts import KAFKA_VERSION, kafka_jars
from txbridge.embedded.fetch import fetch_jars, sha256_of
from txbridge.embedded.paths import cache_root
from txbridge.errors import EnvironmentProblemError

_MANIFEST = "manifest.json"

# Longer than a whole fetch may take (1,200 s, see fetch.py): after this time the other process hangs.
_LOCK_TIMEOUT_S = 1_300.0
_LOCK_POLL_S = 0.2


class BrokenCacheError(EnvironmentProblemError):
    """A jar of the cache is missing, truncated or altered."""


class JarCache:
    """The jars of one version of Kafka in one folder, shared by all processes of a user.

    A folder with the final name was complete once: jars are fetched beside it and renamed in one step.
    """

    def __init__(self, cache_dir: str | os.PathLike[str] | None = None, version: str = KAFKA_VERSION) -> None:
        root = cache_root(cache_dir)
        self.root = root
        self.version = version
        self.folder = root / f"kafka-{version}"
        self._jars = kafka_jars(version)

    @property
    def class_path(self) -> str:
        """All jars in the order of the lock."""
        return os.pathsep.join(str(self.folder / one.file_name) for one in self._jars)

    def ensure(self, *, refetch: bool = False, console: Console | None = None) -> None:
        """Make sure that all jars are there, fetching them when the cache is empty or `refetch` asks for it.

        Progress goes to `console` (standard error by default).

        Raises:
            BrokenCacheError: a jar was damaged after it had been fetched.
            EnvironmentProblemError: they cannot be fetched, or the cache folder cannot be written.

        """
        if refetch or not self.folder.is_dir():
            self._fetch(console or Console(stderr=True), refetch=refetch)
        problems = self.problems()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise BrokenCacheError(
                f"the Kafka jars in {self.folder} are damaged: {problems[0]}{more}. "
                f"Fetch them again with `txbridge kafka start --refetch{self._choice}`"
            )

    @property
    def _choice(self) -> str:
        return "" if self.version == KAFKA_VERSION else f" --kafka-version {self.version}"

    def problems(self) -> list[str]:
        """The problems of the cache; empty when every jar is as the lock says.

        Costs a `stat` of some 50 files. Only a jar whose size or time is not that of the last check is read in full.
        """
        known = self._read_manifest()
        checked: dict[str, dict[str, Any]] = {}
        problems = []
        for one in self._jars:
            path = self.folder / one.file_name
            try:
                status = path.stat()
            except OSError as error:
                problems.append(f"{path.name} is missing ({error.strerror})")
                continue
            entry = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": one.sha256}
            if status.st_size != one.size:
                problems.append(f"{path.name} has {status.st_size} bytes instead of {one.size}")
            elif known.get(path.name) != entry and (found := sha256_of(path)) != one.sha256:
                problems.append(f"{path.name} has been altered (SHA-256 {found} instead of {one.sha256})")
            else:
                checked[path.name] = entry
        if checked != known and not problems:
            with contextlib.suppress(OSError):  # a read-only cache is checked in full each time, 0.1 s
                self._write_manifest(checked)
        return problems

    def _fetch(self, console: Console, *, refetch: bool) -> None:
        with self._writable(), self._lock(console):
            if self.folder.is_dir() and not refetch:
                return  # another process fetched while this one waited
            for left_over in self.root.glob(f"{self.folder.name}.new-*"):  # of a fetch that was killed
                shutil.rmtree(left_over, ignore_errors=True)
            fresh = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.new-", dir=self.root))
            try:
                fetch_jars(fresh, self._jars, f"Kafka {self.version}", console)
                fresh.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
                if self.folder.is_dir():
                    # Running brokers keep reading the old jars through their open files.
                    self.folder.rename(fresh / "old")
                    fresh.rename(self.folder)
                    shutil.rmtree(self.folder / "old")
                else:
                    fresh.rename(self.folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise EnvironmentProblemError(
                    f"the disk of {self.root} is full; free some space, or name another cache folder with "
                    "TXBRIDGE_CACHE_DIR"
                ) from error
            raise EnvironmentProblemError(
                f"the cache folder {self.root} cannot be written ({error.strerror}); name another one with "
                "TXBRIDGE_CACHE_DIR"
            ) from error

    @contextlib.contextmanager
    def _lock(self, console: Console) -> Iterator[None]:
        path = self.root / f"{self.folder.name}.lock"
        with path.open("ab") as lock:
            deadline = Deadline(_LOCK_TIMEOUT_S)
            told = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if deadline.is_over:
                        raise EnvironmentProblemError(
                            f"another process has held {path} for {_LOCK_TIMEOUT_S:.0f} s; end it and try again"
                        ) from error
                if not told:
                    console.print("Another process is fetching Kafka; waiting for it.")
                    told = True
                time.sleep(_LOCK_POLL_S)
            yield

    def _read_manifest(self) -> dict[str, Any]:
        try:
            content = json.loads((self.folder / _MANIFEST).read_text())
        except (OSError, ValueError):
            return {}  # then every jar is read in full
        return content if isinstance(content, dict) else {}

    def _write_manifest(self, content: dict[str, dict[str, Any]]) -> None:
        temporary = self.folder / f"{_MANIFEST}.{os.getpid()}"
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.folder / _MANIFEST)
