"""Fetches the locked jars with the Ivy that PySpark ships: no other build tool is needed on the machine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txbridge.embedded.artifacts import ARTIFACTS, KAFKA_VERSION, Artifact
from txbridge.embedded.diagnose import describe_failure, read_tail
from txbridge.embedded.java import Java
from txbridge.embedded.paths import MIB, require_free_space
from txbridge.embedded.process import ChildProcess
from txbridge.errors import EnvironmentProblemError

#: Bytes: the jars once in Ivy's cache and once retrieved, 88 MB, plus Ivy's reports.
FETCH_SPACE = 100 * MIB

# 45 MB take 6 minutes at 1 Mbit/s; Ivy has no limit of its own, and a hung connection must not hang a CI job for ever.
_FETCH_TIMEOUT_S = 900.0
_POLL_S = 0.1

_RETRIEVE_PATTERN = "[artifact]-[revision].[ext]"

# Every jar is named in full, so no pom has to be read: 4 s instead of 27. The SHA-256 of the lock is stronger than the
# repository's own checksums. A resolver without a root is Ivy's way to say "the central repository".
_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" checksums=""/></resolvers>
</ivysettings>
"""


def ivy_jar() -> Path:
    """Ivy inside the installed PySpark, found without importing PySpark."""
    package = importlib.util.find_spec("pyspark")
    for folder in (package.submodule_search_locations or []) if package else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise EnvironmentProblemError(
        "fetching Kafka needs the package pyspark (its wheel contains Ivy): `pip install 'txbridge[audit]'`. "
        f"Or copy the folder kafka-{KAFKA_VERSION} of the txbridge cache from a machine that has it"
    )


def ivy_module(artifacts: Iterable[Artifact]) -> str:
    """An ivy.xml that asks for exactly these jars and nothing they depend on."""
    wanted = "\n".join(
        f"    <dependency org={quoteattr(one.organisation)} name={quoteattr(one.name)} rev={quoteattr(one.version)}"
        ' conf="default->default" transitive="false"/>'
        for one in artifacts
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="txbridge" module="embedded-kafka"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{wanted}\n  </dependencies>\n</ivy-module>\n"
    )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_jars(folder: Path, java: Java, console: Console, log: Path) -> None:
    """Fill the empty `folder` with every jar of the lock, or raise. Ivy's output goes to `log`.

    Raises:
        EnvironmentProblemError: no pyspark, no space, no network, or bytes that differ from the lock.

    """
    ivy = ivy_jar()
    require_free_space(folder, FETCH_SPACE, "fetching Kafka", "name another cache folder with TXBRIDGE_CACHE_DIR")
    work = folder / "ivy"
    work.mkdir()
    (work / "ivy.xml").write_text(ivy_module(ARTIFACTS))
    settings = work / "ivysettings.xml"
    settings.write_text(_SETTINGS)
    own_settings = os.environ.get("TXBRIDGE_IVY_SETTINGS")
    if own_settings and not Path(own_settings).is_file():
        raise EnvironmentProblemError(f"TXBRIDGE_IVY_SETTINGS names {own_settings}, which is no file")
    log.unlink(missing_ok=True)
    # -types: a bundle is a jar with OSGi metadata, and some poms call theirs so when a mirror's settings read poms.
    command: list[str | Path] = [java.executable, "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", "-jar", ivy]
    command += ["-settings", own_settings or settings, "-ivy", work / "ivy.xml", "-cache", work / "cache"]
    command += ["-confs", "default", "-types", "jar", "bundle", "-retrieve", f"{folder}/{_RETRIEVE_PATTERN}"]
    child = ChildProcess.launch(command, output=log)
    try:
        code = _follow(child, log, console)
    finally:
        child.kill()
    if code != 0:
        raise EnvironmentProblemError(
            describe_failure(f"Ivy could not fetch Kafka {KAFKA_VERSION} (exit code {code})", read_tail(log), log)
        )
    _check(folder)
    shutil.rmtree(work)


def _follow(child: ChildProcess, log: Path, console: Console) -> int:
    total = sum(one.size for one in ARTIFACTS)
    console.print(f"Fetching Kafka {KAFKA_VERSION} ({len(ARTIFACTS)} jars, {total // MIB} MB), once for all projects.")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + _FETCH_TIMEOUT_S
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("looking them up", total=total)
        while (code := child.poll()) is None:
            done = fetched_bytes(log.read_text(errors="replace"))
            progress.update(task, completed=done, description="fetching" if done else "looking them up")
            if time.monotonic() > deadline:
                raise EnvironmentProblemError(
                    f"fetching Kafka took longer than {_FETCH_TIMEOUT_S:.0f} s and was given up; try again on a "
                    "faster network, or copy the cache folder from a machine that has it"
                )
            time.sleep(_POLL_S)
    return code


def fetched_bytes(ivy_log: str) -> int:
    """The size of the jars that Ivy says it has downloaded."""
    done = {line.split("!", 1)[1].split(".jar", 1)[0] for line in ivy_log.splitlines() if "[SUCCESSFUL ]" in line}
    return sum(one.size for one in ARTIFACTS if one.name in done)


def _check(folder: Path) -> None:
    for one in ARTIFACTS:
        path = folder / one.file_name
        if not path.is_file():
            raise EnvironmentProblemError(f"the repository did not deliver {one.file_name}; try again later")
        if (found := sha256_of(path)) != one.sha256:
            raise EnvironmentProblemError(
                f"the repository delivered another {one.file_name} than the one that txbridge was released with "
                f"(SHA-256 {found} instead of {one.sha256}). Do not use it; check the mirror or proxy in between"
            )
