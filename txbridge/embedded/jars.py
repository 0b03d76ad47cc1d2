"""The jars of Apache Kafka, locked by size and SHA-256: their folder, and their download from a Maven repository.

`locks/kafka-VERSION.lock` is what Maven resolves for `org.apache.kafka:kafka_2.13:VERSION` together with
`org.apache.logging.log4j:log4j-slf4j-impl:2.25.4`. The second is not in Kafka's pom: Kafka logs through slf4j 1.7 and
prints nothing at all without a binding. For another version of Kafka, let Maven resolve those two once, with what they
need at run time, and write every jar down in a new file.

A missing or truncated jar is an error that names the file. The lock by SHA-256 is checked, and not the checksums of the
repository: a person who can alter a jar there can alter these, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithPriorAuth, Request, build_opener

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txbridge.deadline import Deadline
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


#: The releases that can be chosen, and the version of each that is locked.
KAFKA_VERSIONS = {"3.9": "3.9.2", "4.0": "4.0.2", "4.1": "4.1.2", "4.2": "4.2.2", "4.3": "4.3.1"}
#: The default version.
KAFKA_VERSION = KAFKA_VERSIONS["4.3"]

_LOCKS = Path(__file__).with_name("locks")

#: Variable for the address of a repository to use instead of Maven Central.
REPOSITORY_VARIABLE = "TXBRIDGE_MAVEN_REPOSITORY"
_CENTRAL = "https://repo.maven.apache.org/maven2"

#: Bytes needed besides the jars: folders, and files rounded up to blocks.
_MARGIN = 8 * MIB
# 98 MB (RocketMQ) take 14 minutes at 1 Mbit/s; a slow repository must not hang a CI job forever.
FETCH_TIMEOUT_S = 1_200.0
# For a connection, and between two pieces of a file. A repository that is silent for longer does not answer.
_SILENCE_S = 10
# Most jars are small, and a connection of its own for each costs more than its bytes.
_AT_ONCE = 4
#: Characters that are not quoted in the path of an address, which may be quoted already.
_PATH = "/%:@!$&'()*+,;=~"
#: Bytes that are read at a time.
_PIECE = 64 * 1024

_OTHER = "name another cache folder with TXBRIDGE_CACHE_DIR"
_REMEDY = (
    "Check the network; behind a proxy set HTTPS_PROXY, and SSL_CERT_FILE if it has an authority of its own; for a "
    f"mirror of your own set {REPOSITORY_VARIABLE} to its address; without any network copy the cache folder from a "
    "machine that has it"
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar of the lock."""

    organisation: str
    name: str
    version: str
    #: Bytes.
    size: int
    #: Lower-case hexadecimal.
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its path in a Maven repository."""
        return f"{self.organisation.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"


def locked_version(release: str) -> str:
    """The locked version for "4.3" or "4.3.1"; UsageError if there is none."""
    version = KAFKA_VERSIONS.get(release, release)
    if version not in KAFKA_VERSIONS.values():
        known = ", ".join(f"{name} ({full})" for name, full in KAFKA_VERSIONS.items())
        raise UsageError(f"Kafka {release} is not among the versions that can be started: {known}")
    return version


@cache
def kafka_jars(version: str) -> tuple[Artifact, ...]:
    """Every jar of this version, in the order of the class path.

    The order is part of the contract: the JVM refuses a class-data archive that was made with another one.
    """
    return tuple(parse_lock((_LOCKS / f"kafka-{version}.lock").read_text()))


def parse_lock(text: str) -> Iterator[Artifact]:
    """One line per jar: name, version, size in bytes, SHA-256; the lines with a colon name the organisation."""
    organisation = ""
    for line in text.split("\n"):
        match line.split():
            case [heading]:
                organisation = heading.removesuffix(":")
            case [name, version, size, sha256]:
                yield Artifact(organisation, name, version, int(size), sha256)


class _StoppedError(Exception):
    """The fetch was given up: a transfer that goes on in its thread ends at its next piece."""


def fetch_jars(folder: Path, jars: Sequence[Artifact], what: str, console: Console) -> None:
    """Fill the empty `folder` with these jars of `what`, as in "Kafka 4.3.1", or raise.

    Raises:
        EnvironmentProblemError: no space, no network, or bytes that differ from the lock.
        UsageError: the address of the repository is invalid.

    """
    address, passwords = _find_repository(os.environ.get(REPOSITORY_VARIABLE) or _CENTRAL)
    total = sum(one.size for one in jars)
    require_free_space(folder, total + _MARGIN, f"fetching {what}", _OTHER)
    console.print(f"Fetching {what} ({len(jars)} jars, {total // MIB} MB), once for all projects.")
    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("fetching", total=total)
        _transfer(folder, jars, what, address, passwords, lambda size: progress.advance(task, size))
    for one in jars:
        with (folder / one.file_name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != one.sha256:
            raise EnvironmentProblemError(
                f"the repository delivered another {one.file_name} than the one that txbridge was released with "
                f"(SHA-256 {found} instead of {one.sha256}). Do not use it; check the mirror or proxy in between"
            )


def _transfer(
    folder: Path,
    jars: Sequence[Artifact],
    what: str,
    address: str,
    passwords: HTTPPasswordMgrWithPriorAuth,
    advance: Callable[[int], None],
) -> None:
    stopped = threading.Event()
    deadline = Deadline(FETCH_TIMEOUT_S)

    def received(size: int) -> None:
        if stopped.is_set():
            raise _StoppedError
        advance(size)

    def fetch(one: Artifact) -> None:
        request = Request(f"{address}/{one.path}", headers={"User-Agent": "txbridge"})  # noqa: S310 - http or https
        try:
            # Its own: it notes each answer, and another thread would read what it notes at that moment.
            with build_opener(HTTPBasicAuthHandler(deepcopy(passwords))).open(request, timeout=_SILENCE_S) as answer:
                _save(answer, folder / one.file_name, received)
        except (OSError, HTTPException, UnicodeError) as error:  # the last one for names that no host can have
            if isinstance(error, HTTPError):
                error.close()
            raise EnvironmentProblemError(f"{one.file_name} could not be fetched: {error}. {_REMEDY}") from error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="txbridge-fetch") as threads:
        transfers = [threads.submit(fetch, one) for one in jars]
        try:
            over, open_ones = wait(transfers, deadline.left, FIRST_EXCEPTION)
        finally:
            # Also on Ctrl-C.
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)
    for transfer in over:
        transfer.result()
    if open_ones:
        raise EnvironmentProblemError(
            f"fetching {what} took longer than {FETCH_TIMEOUT_S:.0f} s and was given up; try again on a faster "
            "network, or copy the cache folder from a machine that has it"
        )


def _find_repository(repository: str) -> tuple[str, HTTPPasswordMgrWithPriorAuth]:
    """The address without user and password, and these for it and nowhere else.

    Raises UsageError if it is no address of a repository.
    """
    if not repository.startswith(("http://", "https://")):
        raise UsageError(f"{REPOSITORY_VARIABLE} must begin with http:// or https://, not be {repository!r}")
    try:
        parts = urlsplit(repository.rstrip("/"))
    except ValueError as error:
        raise UsageError(f"{REPOSITORY_VARIABLE} is not an address: {error}") from None
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=quote(parts.path, safe=_PATH)).geturl()
    passwords = HTTPPasswordMgrWithPriorAuth()
    if parts.username:
        passwords.add_password(None, address, unquote(parts.username), unquote(parts.password or ""), True)
    return address, passwords


def _save(answer: HTTPResponse, path: Path, received: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        while piece := answer.read(_PIECE):
            file.write(piece)
            received(len(piece))
    if answer.length:
        raise OSError(f"the connection ended {answer.length} bytes too early")


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
        with explain_os_errors(f"the cache folder {self.root}", _OTHER), self._hold_lock(console):
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
    def _hold_lock(self, console: Console) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"{self.folder.name}.lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                console.print("Another process is fetching Kafka; waiting for it.")
                # Its fetch ends within FETCH_TIMEOUT_S, and its lock at the latest with the process.
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
