"""The jars of Apache RocketMQ, locked like Kafka's and fetched the same way: by the Ivy that PySpark ships.

`jars.lock` is what Ivy resolves for rocketmq-namesrv, rocketmq-broker and rocketmq-client together, less netty's native
libraries, without which netty does the same more slowly. The format is that of `txbridge/embedded/artifacts.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from txbridge.embedded.artifacts import Artifact, _parse
from txbridge.embedded.diagnose import describe_failure, read_tail
from txbridge.embedded.fetch import ivy_jar, ivy_module, sha256_of
from txbridge.embedded.java import Java
from txbridge.embedded.paths import MIB, cache_root, require_free_space
from txbridge.errors import EnvironmentProblemError

ROCKETMQ_VERSION = "5.5.0"
_LOCK = Path(__file__).with_name("jars.lock")
JARS: tuple[Artifact, ...] = tuple(_parse(_LOCK.read_text()))
#: Where a server is on the class path, the client logs as that server does, and to its standard output.
_SERVERS = ("rocketmq-namesrv", "rocketmq-broker")

# 98 MB take 14 minutes at 1 Mbit/s; Ivy itself would wait for a hung connection for ever.
_FETCH_TIMEOUT_S = 1_200.0

# Every jar is named in full and checked against the lock, so neither poms nor the repository's checksums are read.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" checksums=""/></resolvers>
</ivysettings>
"""


def jar_folder(java: Java) -> Path:
    """The folder with all jars, fetched into the cache of txbridge if they are not there.

    Raises:
        EnvironmentProblemError: they can not be had, or are not those of the lock.

    """
    folder = cache_root() / f"rocketmq-{ROCKETMQ_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Fetched beside it and renamed, so that a folder of this name was complete once.
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
        try:
            _fetch(fresh, java, folder.with_name(f"{folder.name}.fetch.log"))
            fresh.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
            if not folder.is_dir():  # another process may have been quicker
                fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    for one in JARS:
        path = folder / one.file_name
        if not path.is_file() or path.stat().st_size != one.size:
            raise EnvironmentProblemError(f"{path} is missing or damaged: delete the folder {folder} and try again")
    return folder


def class_path(folder: Path, *, servers: bool) -> str:
    """The jars as Java wants them, with or without the servers."""
    return os.pathsep.join(str(folder / one.file_name) for one in JARS if servers or one.name not in _SERVERS)


def _fetch(folder: Path, java: Java, log: Path) -> None:
    total = sum(one.size for one in JARS)
    # Once in Ivy's cache, once retrieved.
    require_free_space(folder, 2 * total, "fetching RocketMQ", "name another cache folder with TXBRIDGE_CACHE_DIR")
    print(f"Fetching RocketMQ {ROCKETMQ_VERSION} ({len(JARS)} jars, {total // MIB} MB), once.", flush=True)
    work = folder / "ivy"
    work.mkdir()
    (work / "ivy.xml").write_text(ivy_module(JARS))
    (work / "ivysettings.xml").write_text(_SETTINGS)
    settings = Path(os.environ.get("TXBRIDGE_IVY_SETTINGS") or work / "ivysettings.xml")
    if not settings.is_file():
        raise EnvironmentProblemError(f"TXBRIDGE_IVY_SETTINGS names {settings}, which is no file")
    command: list[str | Path] = [java.executable, "-jar", ivy_jar(), "-settings", settings, "-ivy", work / "ivy.xml"]
    command += ["-cache", work / "cache", "-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
    with log.open("wb") as output:
        try:
            done = subprocess.run(command, stdout=output, stderr=output, timeout=_FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise EnvironmentProblemError(
                f"fetching RocketMQ took longer than {_FETCH_TIMEOUT_S:.0f} s and was given up; try again on a faster "
                f"network, or copy the folder rocketmq-{ROCKETMQ_VERSION} of the txbridge cache from another machine"
            ) from None
    if done.returncode != 0:
        what = f"Ivy could not fetch RocketMQ {ROCKETMQ_VERSION} (exit code {done.returncode})"
        raise EnvironmentProblemError(describe_failure(what, read_tail(log), log))
    for one in JARS:
        path = folder / one.file_name
        if not path.is_file() or (found := sha256_of(path)) != one.sha256:
            have = "nothing" if not path.is_file() else f"SHA-256 {found}"
            raise EnvironmentProblemError(
                f"the repository delivered another {one.file_name} than {_LOCK} names "
                f"({have} instead of {one.sha256}); check the mirror or proxy in between"
            )
    shutil.rmtree(work)
