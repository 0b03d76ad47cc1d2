"""RocketMQ's own `mqadmin`, from the jars of the peer."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.peer.jars import class_path, jar_folder
from txbridge.embedded.java import find_java

_TIMEOUT_S = 300.0


def mqadmin(*command: str, key: tuple[str, str] | None = None) -> str:
    """Run a command, signed with an access key and its secret if they are given. Returns all of its output."""
    with tempfile.TemporaryDirectory(prefix="txbridge-mqadmin-") as home:
        if key is not None:
            (Path(home) / "conf").mkdir()
            (Path(home) / "conf" / "tools.yml").write_text(f"accessKey: {key[0]}\nsecretKey: {key[1]}\n")
        options = ["-Xmx128m", f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
        jars = class_path(jar_folder(), servers=False)
        start = [find_java().executable, *options, "-cp", jars, "org.apache.rocketmq.tools.command.MQAdminStartup"]
        done = subprocess.run([*start, *command], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        return done.stdout + done.stderr
