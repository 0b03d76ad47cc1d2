"""A real RocketMQ for one run: a name server and a broker from their jars, on the loopback address, in a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.peer.jars import class_path, jar_folder
from txbridge.embedded.java import Java, describe_failure, find_java, read_tail
from txbridge.embedded.ports import HOST, free_port, is_free
from txbridge.embedded.process import ChildProcess
from txbridge.errors import EnvironmentProblemError

BROKER_NAME = "peer"
#: Folder of the logs of servers and clients. They are kept, to explain a result.
LOGS = Path("build/peer")

# A broker was up after 6 s, and after 17 s with fourteen processes on two cores; the rest is reserve.
_START_TIMEOUT_S = 120.0
_POLL_S = 0.1

# The port of replication (ha) has no option for its address, so it alone listens on every interface during a run.
_BROKER = """\
brokerClusterName=peer
brokerName={name}
brokerId=0
brokerIP1={host}
brokerIP2={host}
bindAddress={host}
listenPort={port}
namesrvAddr={host}:{names_port}
haListenPort={ha_port}
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
mappedFileSizeCommitLog=268435456
autoCreateTopicEnable=true
"""
#: The transaction times are those of `tests.support.harness.FAST`. The OP batch is far below the time-out. With the
#: default (3 s) committed messages would be checked again: a defect that depends on timing and would hide the
#: differences of interest.
FAST_CHECKS = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 3,
    "transactionOpBatchInterval": 100,
}


@dataclass(frozen=True)
class Peer:
    """A running RocketMQ."""

    java: Java
    jars: Path
    names: str
    broker: str
    folder: Path
    servers: list[ChildProcess] = field(default_factory=list)
    broker_name: str = BROKER_NAME

    def pause(self) -> None:
        """Stop the servers, for less than the two minutes after which they take each other for dead."""
        for server in self.servers:
            os.kill(server.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the servers go on after a pause."""
        for server in self.servers:
            os.kill(server.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Interrupt a long pause: the servers run inside this block."""
        self.go_on()
        try:
            yield
        finally:
            self.pause()

    def java_command(self, heap: str, classes: str, *arguments: str) -> list[str | Path]:
        """Command of a JVM with RocketMQ's jars that writes nothing outside the folder of the run."""
        # RocketMQ logs below user.home. Without the last flag it refuses everything on a disk that is 90 % full.
        flags = [f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={self.folder}"]
        flags += ["-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98"]
        return [self.java.executable, *flags, "-cp", classes, *arguments]


@contextlib.contextmanager
def peer(options: Mapping[str, object], heap: str = "512m") -> Iterator[Peer]:
    """Start name server and broker, and end both in every case.

    `options` are the broker's, by RocketMQ's names; `heap` is its memory, as Java writes it.

    Raises:
        EnvironmentProblemError: no Java, no jars, or one of them did not start; the message quotes what it wrote.

    """
    java = find_java()
    jars = jar_folder()
    LOGS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="txbridge-rocketmq-"))
    try:
        names_port, ha_port, port = free_port(), free_port(), _broker_port()
        made = Peer(java, jars, f"{HOST}:{names_port}", f"{HOST}:{port}", folder)
        (folder / "names.conf").write_text(f"listenPort={names_port}\nbindAddress={HOST}\n")
        values = {"name": BROKER_NAME, "host": HOST, "port": port, "names_port": names_port, "ha_port": ha_port}
        more = "".join(f"{name}={value}\n" for name, value in options.items())
        (folder / "broker.conf").write_text(_BROKER.format(**values, folder=folder) + more)
        with (
            _server(made, "names", "64m", "org.apache.rocketmq.namesrv.NamesrvStartup"),
            _server(made, "broker", heap, "org.apache.rocketmq.broker.BrokerStartup"),
        ):
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _broker_port() -> int:
    # The broker also listens two ports below, for clients up to 4.4.
    while not is_free((port := free_port()) - 2):
        pass
    return port


@contextlib.contextmanager
def _server(made: Peer, name: str, heap: str, main: str) -> Iterator[None]:
    log = LOGS / f"{name}.log"
    log.unlink(missing_ok=True)
    home = ["env", f"ROCKETMQ_HOME={made.folder}"]
    java = made.java_command(heap, class_path(made.jars, servers=True), main, "-c", str(made.folder / f"{name}.conf"))
    child = ChildProcess.launch_program([*home, *java], output=log, scratch=made.folder)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while "boot success" not in read_tail(log):
            if child.poll() is not None or time.monotonic() > deadline:
                raise EnvironmentProblemError(
                    describe_failure(f"RocketMQ's {name} server did not start", read_tail(log), log)
                )
            time.sleep(_POLL_S)
        made.servers.append(child)
        yield
    finally:
        # SIGKILL, because the broker takes 10 to 18 s for SIGTERM; the files that it would save are deleted anyway.
        child.kill()
