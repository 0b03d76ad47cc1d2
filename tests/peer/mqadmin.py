"""RocketMQ's own `mqadmin`, from the jars of the peer."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Self

from tests.peer.jars import class_path, jar_folder
from tests.support.line_process import LineProcess
from txbridge.embedded.java import find_java

_TIMEOUT_S = 300.0


class Mqadmin:
    """All commands in one JVM, because its start takes seconds. They are signed with a key and its secret, if given."""

    def __init__(self, key: tuple[str, str] | None = None) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="txbridge-mqadmin-")
        home = Path(self._home.name)
        if key is not None:
            (home / "conf").mkdir()
            (home / "conf" / "tools.yml").write_text(f"accessKey: {key[0]}\nsecretKey: {key[1]}\n")
        options = ["-Xmx128m", f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
        program = ["-cp", class_path(jar_folder(), servers=False), Path(__file__).with_name("Mqadmin.java")]
        self._process = LineProcess([find_java().executable, *options, *program], home / "errors")

    def __call__(self, *command: str) -> str:
        """Run a command. Returns all of its output."""
        answer = self._process.ask(json.dumps(command), _TIMEOUT_S)
        assert answer, self._process.errors
        told: str = json.loads(answer)
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end(10)
        self._home.cleanup()
