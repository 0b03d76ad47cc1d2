"""The cache of Kafka's jars. A missing or truncated jar is an error that names the file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from txbridge.embedded.artifacts import KAFKA_VERSION, kafka_jars
from txbridge.embedded.fetch import fetch_jars
from txbridge.embedded.paths import cache_root
from txbridge.errors import EnvironmentProblemError


class BrokenCacheError(EnvironmentProblemError):
    """A jar of the cache is missing or truncated."""


class JarCache:
    """The jars of one version of Kafka in one folder, shared by all processes of a user.

    A folder with the final name was complete once: jars are fetched beside it and renamed in one step.
    """

    def __init__(self, version: str = KAFKA_VERSION) -> None:
        self.root = cache_root()
        self.version = version
        self.folder = self.root / f"kafka-{version}"
        self._jars = kafka_jars(version)

    @property
    def class_path(self) -> str:
        """All jars in the order of the lock."""
        return os.pathsep.join(str(self.folder / one.file_name) for one in self._jars)

    def ensure_jars(self, *, refetch: bool = False) -> None:
        """Make sure that all jars are there, fetching them when the cache is empty or `refetch` asks for it.

        Progress goes to standard error.

        Raises:
            BrokenCacheError: a jar was damaged after it had been fetched.
            EnvironmentProblemError: they cannot be fetched, or the cache folder cannot be written.

        """
        if refetch or not self.folder.is_dir():
            self._fetch_jars(Console(stderr=True), refetch=refetch)
        problem = self.find_problem()
        if problem is not None:
            version = "" if self.version == KAFKA_VERSION else f" --kafka-version {self.version}"
            raise BrokenCacheError(
                f"the Kafka jars in {self.folder} are damaged: {problem}. "
                f"Fetch them again with `txbridge kafka start --refetch{version}`"
            )

    def find_problem(self) -> str | None:
        """The first jar that is missing or has another size than the lock says.

        Its content was compared with the lock when it was fetched. Java notices a jar that was damaged later.
        """
        for one in self._jars:
            path = self.folder / one.file_name
            try:
                size = path.stat().st_size
            except OSError as error:
                return f"{path.name} is missing ({error.strerror})"
            if size != one.size:
                return f"{path.name} has {size} bytes instead of {one.size}"
        return None

    def _fetch_jars(self, console: Console, *, refetch: bool) -> None:
        with self._explain_os_errors(), self._hold_lock(console):
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
    def _explain_os_errors(self) -> Iterator[None]:
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
    def _hold_lock(self, console: Console) -> Iterator[None]:
        with (self.root / f"{self.folder.name}.lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                console.print("Another process is fetching Kafka; waiting for it.")
                # Its fetch ends within FETCH_TIMEOUT_S, and its lock at the latest with the process.
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
