"""RocketMQ's own Java client in a process of its own: a program of this folder, on a pipe."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Self

from tests.peer.cache import cached, named_by, run
from tests.peer.jars import class_path
from tests.peer.server import LOGS, Peer
from tests.support.line_process import LineProcess
from txbridge.embedded.java import Java, relevant_lines
from txbridge.errors import EnvironmentProblemError

# javac took 10 s on a loaded machine; more than ten times that is a hang.
_COMPILE_TIMEOUT_S = 120.0
#: The slowest ordinary command starts a producer: a heartbeat and a route, each with 10 s, and the JVM's own start.
ANSWER_TIMEOUT_S = 60.0
# The program ends with its input, without waiting for anything.
_END_TIMEOUT_S = 10.0


def compiled(java: Java, jars: str, source: Path) -> str:
    """Class path of these jars and a program, which is compiled once for them.

    Raises:
        EnvironmentProblemError: there is no compiler, only a Java that runs programs.

    """
    compiler = java.executable.with_name("javac")
    found = str(compiler) if compiler.is_file() else shutil.which("javac")
    if found is None:
        raise EnvironmentProblemError(
            f"this needs a JDK, and {java.executable} is a Java without `javac`: install one "
            "(for example `apt-get install openjdk-17-jdk-headless`), or point JAVA_HOME to one"
        )
    command = [found, "-nowarn", "-encoding", "UTF-8", "-cp", jars]
    of_these = hashlib.sha256(f"{java.version}\0{jars}".encode()).hexdigest()[:12]

    def fill(folder: Path) -> None:
        run([*command, "-d", str(folder), str(source)], source.parent, _COMPILE_TIMEOUT_S)

    return f"{cached(f'{named_by(source.stem, source)}-{of_these}', fill)}{os.pathsep}{jars}"


class PeerClient:
    """A running Java program of this folder. It ends with its input, and so with this process."""

    def __init__(self, peer: Peer, program: str, topic: str, queues: int, *, heap: str = "256m") -> None:
        jars = class_path(peer.jars, servers=False)
        classes = compiled(peer.java, jars, Path(__file__).with_name(f"{program}.java"))
        arguments = [peer.names, peer.broker, peer.broker_name, topic, str(queues)]
        LOGS.mkdir(parents=True, exist_ok=True)
        self._process = LineProcess(
            peer.java_command(heap, classes, program, *arguments),
            LOGS / f"{program}-{peer.broker_name.replace(':', '-')}.log",
            {**os.environ, "ROCKETMQ_HOME": str(peer.folder)},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: str, *, timeout: float = ANSWER_TIMEOUT_S, **arguments: object) -> Any:
        """Send a command and return its result; `timeout` in seconds.

        Raises:
            RuntimeError: it failed; the message has the last lines of the client's log.

        """
        try:
            line = self._process.ask(json.dumps({"command": command, **arguments}), timeout)
        except TimeoutError:
            raise RuntimeError(f"RocketMQ's client did not answer {command} in {timeout:.0f} s") from None
        answer = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            said = "\n  ".join(relevant_lines(self._process.errors))
            raise RuntimeError(f"RocketMQ's client failed at {command} {arguments}: {answer['error']}\n  {said}")
        return answer["done"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end(_END_TIMEOUT_S)
