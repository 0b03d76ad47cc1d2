"""A second real broker beside an embedded Kafka, for tests in which one of several brokers is away."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.config import broker_properties, jvm_flags, log4j2_configuration, render_properties
from txbridge.embedded.datadir import child_environment
from txbridge.embedded.diagnose import read_tail
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java
from txbridge.embedded.ports import HOST, free_port
from txbridge.embedded.process import ChildProcess
from txbridge.embedded.ready import wait_until_ready

#: Node ids. The embedded broker is the controller, too.
FIRST, SECOND = 1, 2
#: Setting for the embedded Kafka: time after which a dead broker counts as gone (ms). Its default of 24 days is for one
#: node.
SESSION = {"broker.session.timeout.ms": "3000"}
#: The embedded broker's limit (s).
_START_S = 60.0


class SecondBroker:
    """A broker that joins the cluster of a running embedded Kafka. It has only partitions that are assigned to it."""

    def __init__(self, first: EmbeddedKafka, config: Mapping[str, str] | None = None) -> None:
        self._config = config or {}
        self._first = first
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-second-")
        self._child: ChildProcess | None = None
        #: Address of this broker alone.
        self.bootstrap_servers = ""

    def __enter__(self) -> Self:
        folder, port = Path(self._folder.name), free_port()
        self.bootstrap_servers = f"{HOST}:{port}"
        known = _properties(self._first.data_dir / "server.properties")
        controller_port = int(known["controller.quorum.voters"].rpartition(":")[2])
        cluster = _properties(self._first.data_dir / "kafka" / "meta.properties")["cluster.id"]
        own = {
            **self._config,
            "process.roles": "broker",
            "node.id": str(SECOND),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
        }
        properties = folder / "server.properties"
        properties.write_text(render_properties(broker_properties(port, controller_port, folder / "kafka", own)))
        (folder / "log4j2.xml").write_text(log4j2_configuration())
        flags = jvm_flags("fast-start", "256m", folder, folder / "log4j2.xml")
        java = [find_java().executable, *flags, "-cp", JarCache().class_path]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", properties]
        console, environment = folder / "console.log", child_environment()
        formatted = ChildProcess.launch_program([*java, *tool], output=console, env=environment).wait(_START_S)
        assert formatted == 0, read_tail(console)

        def start() -> None:
            child = ChildProcess.launch_program([*java, "kafka.Kafka", properties], output=console, env=environment)
            self._child = child
            ready = wait_until_ready(port, cluster, lambda: child.poll() is not None, _START_S)
            assert ready, read_tail(folder / "server.log")

        self.start = start
        start()
        return self

    def kill(self) -> None:
        """Send SIGKILL. `start` starts it again, on the same port and with its data."""
        assert self._child is not None
        self._child.kill()

    def pause(self) -> None:
        """Send SIGSTOP: its connections stay open, but it does not answer."""
        assert self._child is not None
        self._child.pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self._child is not None
        self._child.resume()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()


def _properties(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="latin-1").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.replace("\\", ""): value.replace("\\", "") for name, value in values.items()}
