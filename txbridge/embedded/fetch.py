"""Download of jars that are locked by SHA-256, from Maven Central or another Maven repository.

The lock is checked, and not the checksums of the repository: a person who can alter a jar there can alter these, too.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    HTTPBasicAuthHandler,
    HTTPPasswordMgrWithPriorAuth,
    OpenerDirector,
    Request,
    build_opener,
)

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txbridge.deadline import Deadline
from txbridge.embedded.artifacts import Artifact
from txbridge.embedded.paths import MIB, require_free_space
from txbridge.errors import EnvironmentProblemError, UsageError

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

_REMEDY = (
    "Check the network; behind a proxy set HTTPS_PROXY, and SSL_CERT_FILE if it has an authority of its own; for a "
    f"mirror of your own set {REPOSITORY_VARIABLE} to its address; without any network copy the cache folder from a "
    "machine that has it"
)


class _StoppedError(Exception):
    """The fetch was given up: a transfer that goes on in its thread ends at its next piece."""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_jars(folder: Path, jars: Sequence[Artifact], what: str, console: Console) -> None:
    """Fill the empty `folder` with these jars of `what`, as in "Kafka 4.3.1", or raise.

    Raises:
        EnvironmentProblemError: no space, no network, or bytes that differ from the lock.
        UsageError: the address of the repository is invalid.

    """
    address, opener = _open_repository(os.environ.get(REPOSITORY_VARIABLE) or _CENTRAL)
    total = sum(one.size for one in jars)
    require_free_space(folder, total + _MARGIN, f"fetching {what}", "name another cache folder with TXBRIDGE_CACHE_DIR")
    console.print(f"Fetching {what} ({len(jars)} jars, {total // MIB} MB), once for all projects.")
    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("fetching", total=total)
        _transfer(folder, jars, what, address, opener, lambda size: progress.advance(task, size))
    for one in jars:
        if (found := sha256_of(folder / one.file_name)) != one.sha256:
            raise EnvironmentProblemError(
                f"the repository delivered another {one.file_name} than the one that txbridge was released with "
                f"(SHA-256 {found} instead of {one.sha256}). Do not use it; check the mirror or proxy in between"
            )


def _transfer(
    folder: Path,
    jars: Sequence[Artifact],
    what: str,
    address: str,
    opener: OpenerDirector,
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
            with opener.open(request, timeout=_SILENCE_S) as answer:
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


def _open_repository(repository: str) -> tuple[str, OpenerDirector]:
    """The address without user and password, and an opener that sends them to it and nowhere else.

    Raises UsageError if it is no address of a repository.
    """
    if not repository.startswith(("http://", "https://")):
        raise UsageError(f"{REPOSITORY_VARIABLE} must begin with http:// or https://, not be {repository!r}")
    try:
        parts = urlsplit(repository.rstrip("/"))
    except ValueError as error:
        raise UsageError(f"{REPOSITORY_VARIABLE} is not an address: {error}") from None
    path = quote(parts.path, safe=_PATH)
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=path).geturl()
    passwords = HTTPPasswordMgrWithPriorAuth()
    if parts.username:
        passwords.add_password(None, address, unquote(parts.username), unquote(parts.password or ""), True)
    return address, build_opener(HTTPBasicAuthHandler(passwords))


def _save(answer: HTTPResponse, path: Path, received: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        while piece := answer.read(_PIECE):
            file.write(piece)
            received(len(piece))
    if answer.length:
        raise OSError(f"the connection ended {answer.length} bytes too early")
