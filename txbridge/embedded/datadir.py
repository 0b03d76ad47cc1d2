"""The nodes of a cluster with their folders and ports, and the folder of one: a test of it, and Kafka's formatting."""

from __future__ import annotations

import base64
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from txbridge.embedded import config
from txbridge.embedded.jars import MIB, explain_os_errors, require_free_space
from txbridge.embedded.java import KafkaStartError, describe_failure, read_tail
from txbridge.embedded.ports import free_port
from txbridge.embedded.process import ChildProcess
from txbridge.errors import EnvironmentProblemError, UsageError

#: Bytes. An empty broker writes 5 MB, and every partition that is written to takes index files of up to 20 MB.
DATA_SPACE = 200 * MIB

# Formatting takes 0.5 s on an idle machine; a minute is for an overloaded one.
_FORMAT_TIMEOUT_S = 60.0
#: Largest number of brokers. Each one needs a JVM of its own.
MOST_BROKERS = 9
_BROKER = "broker-"


def check_size(brokers: int) -> int:
    """Return the number of brokers, or raise UsageError."""
    if brokers == 1 or config.QUORUM <= brokers <= MOST_BROKERS:
        return brokers
    why = ""
    if brokers == 2:
        why = ": with two, none may be away (a quorum of two needs both)"
    elif brokers > MOST_BROKERS:
        why = ": each one needs a JVM of its own"
    raise UsageError(f"brokers must be 1, or {config.QUORUM} to {MOST_BROKERS}, not {brokers}{why}")


def check_port(port: int | None, brokers: int) -> int | None:
    """Return the port, or raise UsageError. Further brokers take the ports above that of the first."""
    if port is not None and not 1 <= port <= 65_536 - brokers:
        raise UsageError(f"port must be between 1 and {65_536 - brokers}, or None for a free one, not {port}")
    return port


def check_secure_port(secure_port: int | None, port: int | None, brokers: int) -> int | None:
    """Return the port of the listener with TLS, or raise UsageError."""
    if secure_port is None:
        return None
    if brokers > 1:
        raise UsageError("only one node can have a secure port: leave --brokers out, in Python brokers=...")
    if not 0 <= secure_port <= 65_535 or secure_port == port:
        raise UsageError(f"secure_port must be between 0, for a free one, and 65535, and not port, not {secure_port}")
    return secure_port


def choose_folders(data_dir: Path, brokers: int) -> dict[int, Path]:
    """The folder of each node by its id. One node has the data folder itself.

    Raises:
        UsageError: the data folder holds another number of nodes.

    """
    if brokers == 1:
        wanted = {1: data_dir}
    else:
        wanted = {number: data_dir / f"{_BROKER}{number}" for number in range(1, brokers + 1)}
    found = set(find_folders(data_dir))
    if found and found != set(wanted.values()):
        kind = f"{len(found)} broker{'s' if len(found) > 1 else ''}"
        raise UsageError(
            f"the data folder {data_dir} belongs to a Kafka of {kind}: start it with as many (--brokers, in Python "
            "brokers=...), or use another folder (--data-dir, in Python data_dir=...)"
        )
    return wanted


def find_folders(data_dir: Path) -> list[Path]:
    """The folders of the nodes that were formatted or started here, in the order of their ids."""
    return [
        folder
        for folder in (data_dir, *sorted(data_dir.glob(f"{_BROKER}*")))
        if (folder / "kafka" / "meta.properties").exists() or (folder / "broker.json").exists()
    ]


def choose_ports(brokers: int, port: int | None) -> list[config.BrokerPorts]:
    """Ports for each broker, the clients' from `port` on, or free ones."""
    # A chosen port of one node must not be the wanted one of another.
    taken: set[int] = set() if port is None else set(range(port, port + brokers))

    def choose() -> int:
        while (found := free_port()) in taken:
            pass
        taken.add(found)
        return found

    return [
        config.BrokerPorts(
            node_id, choose() if port is None else port + node_id - 1, internal=choose(), controller=choose()
        )
        for node_id in range(1, brokers + 1)
    ]


class DataDir:
    """Paths and preparation. Nothing here knows whether a broker runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Kafka's own files.
        self.kafka = path / "kafka"
        self.logs = path / "logs"
        self.server_log = self.logs / "server.log"
        #: The JVM's own output, before logging works or after it has failed.
        self.console_log = self.logs / "console.log"
        self.format_log = self.logs / "format.log"
        self.properties = path / "server.properties"
        self.log_config = path / "log4j2.xml"

    def make_folders(self) -> None:
        """Make the folders, and raise an error if they cannot be written to."""
        if "\n" in str(self.path) or "," in str(self.path):
            raise UsageError(f"Kafka cannot keep data in {self.path}: use a path without commas and line breaks")
        with self.os_errors():
            for folder in (self.kafka, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    pass
        require_free_space(self.path, DATA_SPACE, "a broker", "use another data folder (--data-dir)")

    def write_config(self, properties: Mapping[str, str]) -> None:
        """Write the files that Kafka reads at start, anew each time: the ports may have changed."""
        with self.os_errors():
            self.properties.write_text(config.render_properties(properties), encoding="ascii")
            self.log_config.write_text(config.log4j2_configuration(), encoding="ascii")

    def os_errors(self) -> AbstractContextManager[None]:
        """Turn an OSError into an EnvironmentProblemError with a remedy."""
        return explain_os_errors(f"the data folder {self.path}", "use another one (--data-dir, in Python data_dir=...)")

    def cluster_id(self) -> str | None:
        """The id that the folder was formatted with; None before that."""
        try:
            lines = (self.kafka / "meta.properties").read_text(encoding="latin-1").splitlines()
        except FileNotFoundError:
            return None
        values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        if "cluster.id" not in values:
            raise EnvironmentProblemError(
                f"{self.kafka / 'meta.properties'} names no cluster: the data folder is damaged. "
                "Restore it, or use another one (--data-dir)"
            )
        return values["cluster.id"]

    def format_for(self, cluster_id: str, java_command: Sequence[str | Path]) -> None:
        """Format the folder for this cluster unless it is formatted. `java_command` ends with the class path."""
        if self.cluster_id() is not None:
            return
        # Kafka writes meta.properties last. A folder without it was not formatted to the end: format it again.
        arguments: list[str | Path] = [
            "kafka.tools.StorageTool",
            "format",
            "--ignore-formatted",
            "-t",
            cluster_id,
            "-c",
            self.properties,
        ]
        self.format_log.unlink(missing_ok=True)
        child = ChildProcess.launch_program([*java_command, *arguments], output=self.format_log)
        try:
            code = child.wait(_FORMAT_TIMEOUT_S)
        finally:
            child.kill()
        if code != 0 or self.cluster_id() != cluster_id:
            how = f"did not end within {_FORMAT_TIMEOUT_S:.0f} s" if code is None else f"failed with exit code {code}"
            output = read_tail(self.format_log)
            message = describe_failure(f"formatting the data folder {self.path} {how}", output, self.format_log)
            raise KafkaStartError(message, code, output)


def new_cluster_id() -> str:
    """16 random bytes as Kafka writes them; not with a leading dash, which its tools take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
