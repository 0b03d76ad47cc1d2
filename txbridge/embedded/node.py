"""One node of Kafka as a child process, with its folder; it is ready when it answers a real request."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from txbridge.deadline import Deadline
from txbridge.embedded.config import jvm_flags
from txbridge.embedded.datadir import DataDir
from txbridge.embedded.java import Java, KafkaStartError, describe_failure, read_tail
from txbridge.embedded.ports import HOST
from txbridge.embedded.process import BrokerState, ChildProcess, data_lock, process_identity, remove_state, write_state
from txbridge.errors import UsageError
from txbridge.interrupts import in_own_thread

#: Seconds. A start takes 2 s on two idle cores, and 3 s on the data of an earlier one. The rest is for overloaded
#: machines: with a load of 44 on two cores 60 s were too few.
START_TIMEOUT_S = 180.0
#: Seconds. A clean stop takes 0.3 s when idle; flushing many partitions on a slow disk takes longer.
STOP_TIMEOUT_S = 15.0
# One connect or request on the loopback takes milliseconds; a broker that is busy starting may take longer.
_REQUEST_TIMEOUT_S = 2.0
# The port opens 0.05 s before the first answer; asking more often than this would not make a start shorter.
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """The Java of a node, and its options."""

    java: Java
    class_path: str
    heap: str
    profile: str
    version: str

    def java_command(self, logs: Path, log_config: Path) -> list[str | Path]:
        """The command line up to the class path."""
        flags = jvm_flags(self.profile, self.heap, logs, log_config)
        return [self.java.executable, *flags, "-cp", self.class_path]


@dataclass(frozen=True, slots=True)
class Launch:
    """The parameters of a start, kept for the next start."""

    runtime: JavaRuntime
    #: Port for clients.
    port: int
    cluster_id: str
    may_detach: bool
    #: Folder to delete when this process has ended before it could do so itself.
    scratch: Path | None


class Node:
    """A broker. All methods may be called from any thread."""

    def __init__(self, node_id: int, data: DataDir, lock: threading.RLock) -> None:
        #: Kafka's `node.id`.
        self.node_id = node_id
        self.data = data
        self._lock = lock
        self._launch: Launch | None = None
        self._child: ChildProcess | None = None
        self._log_start = 0
        #: State of the process that runs or ran last.
        self.state: BrokerState | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Its own address for clients: "127.0.0.1:port"."""
        return f"{HOST}:{self.port}"

    @property
    def port(self) -> int:
        """Its port for clients. UsageError before the first start."""
        return self._get_launch().port

    @property
    def pid(self) -> int:
        """The process id of the JVM. UsageError while it does not run."""
        return self._get_child().pid

    @property
    def log_file(self) -> Path:
        """Kafka's own log; the JVM's output is in console.log beside it."""
        return self.data.server_log

    def is_running(self) -> bool:
        """Whether the process exists (a paused one does)."""
        child = self._child
        return child is not None and child.poll() is None

    def start(self, timeout: float = START_TIMEOUT_S) -> None:
        """Start it again, on the same ports and with its data, and wait until the cluster counts it as alive.

        Raises:
            UsageError: it runs, or the cluster was never started.
            KafkaStartError: it ended or did not answer in time.

        """
        with self._lock:
            self.begin_start()
            self.wait_ready(timeout)

    def begin_start(self) -> None:
        """The first half of `start`. Nodes that can answer only together are begun one after the other."""
        with self._lock, self.claim_folder() as claimed:
            self.launch_process(self._get_launch(), claimed)

    def wait_ready(self, timeout: float = START_TIMEOUT_S, together: Collection[Node] = ()) -> None:
        """The second half of `start`: wait until it answers, and knows all that start `together` as alive.

        Raises:
            KafkaStartError: one of them ended, or it did not answer in time. It is killed then.

        """
        launch, nodes = self._get_launch(), together or [self]
        expected = {node.node_id for node in nodes}
        with contextlib.ExitStack() as failure:
            failure.callback(self.kill)
            if not wait_until_ready(
                launch.port, launch.cluster_id, lambda: not all(node.is_running() for node in nodes), timeout, expected
            ):
                # A node that has ended has the reason in its log. Otherwise blame the one that does not answer.
                raise next((node for node in nodes if not node.is_running()), self).make_start_error()
            failure.pop_all()

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. Does nothing if it does not run."""
        self._end_child(lambda child: child.stop(timeout))

    def kill(self) -> None:
        """Send SIGKILL. The data stay for `start`."""
        self._end_child(ChildProcess.kill)

    def restart(self, timeout: float = START_TIMEOUT_S) -> None:
        """Stop cleanly if it runs, then start."""
        with self._lock:
            self.stop()
            self.start(timeout)

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        if self._child is not None:
            self._child.terminate()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, nothing answers."""
        self._get_child().pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._get_child().resume()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it ends by itself. Its exit code (128 + n after signal n), None after `timeout` s."""
        return self._child.wait(timeout) if self._child is not None else None

    @contextlib.contextmanager
    def claim_folder(self) -> Iterator[int]:
        """Own the folder. Yields the open file that holds the lock, which the process has to inherit."""
        if self.is_running():
            raise UsageError(f"this Kafka runs already, on {self.bootstrap_servers}")
        self.data.make_folders()
        with data_lock(self.data.path) as lock:
            yield lock

    def format_folder(self, cluster_id: str, runtime: JavaRuntime) -> None:
        self.data.format_for(cluster_id, runtime.java_command(self.data.logs, self.data.log_config))

    def launch_process(self, launch: Launch, lock: int) -> None:
        """Start the process; the folder is claimed and formatted."""
        self._launch = launch
        data = self.data
        self._log_start = data.server_log.stat().st_size if data.server_log.exists() else 0
        data.console_log.unlink(missing_ok=True)
        command = launch.runtime.java_command(data.logs, data.log_config)
        child = ChildProcess.launch_program(
            [*command, "kafka.Kafka", data.properties],
            output=data.console_log,
            may_detach=launch.may_detach,
            scratch=launch.scratch,
            kept_file=lock,
        )
        self._child = child
        self.state = BrokerState(
            pid=child.pid,
            identity=process_identity(child.pid) or "gone",
            port=launch.port,
            version=launch.runtime.version,
            cluster_id=launch.cluster_id,
            detached=launch.may_detach,
        )
        try:
            with data.os_errors():
                write_state(data.path, self.state)
        except BaseException:
            self.kill()
            raise

    def detach(self) -> None:
        """Let the process outlive this one."""
        self._get_child().detach()
        self._child = None

    def make_start_error(self) -> KafkaStartError:
        """The error of a failed start, with the output of the node."""
        code = self._child.poll() if self._child is not None else None
        said = read_tail(self.data.server_log, self._log_start)
        output = read_tail(self.data.console_log) + said
        what = (
            "Kafka did not answer in time (on a machine that is just slow, allow it more: --timeout, in Python "
            "start(timeout=...))"
            if code is None
            else f"Kafka ended with exit code {code} while it was starting"
        )
        message = describe_failure(what, output, self.data.server_log if said else self.data.console_log)
        return KafkaStartError(message, code, output)

    def _end_child(self, end: Callable[[ChildProcess], None]) -> None:
        with self._lock:
            child, self._child = self._child, None
            if child is None:
                return
            try:
                end(child)
            finally:
                remove_state(self.data.path)

    def _get_launch(self) -> Launch:
        if self._launch is None:
            raise UsageError("this Kafka was never started; call start() first")
        return self._launch

    def _get_child(self) -> ChildProcess:
        if self._child is None or not self.is_running():
            raise UsageError("this Kafka does not run; call start() first")
        return self._child


def ask_broker(port: int) -> ClusterMetadata | None:
    """The cluster as known behind this port of the loopback address; None if its broker does not answer in time.

    Once that has named other brokers, one of these may give the rest of the answer.
    """
    try:
        # The client would wait for the whole time-out while nothing listens.
        socket.create_connection((HOST, port), _REQUEST_TIMEOUT_S).close()
        # A client of its own for each question knows no other broker at first.
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
        # confluent-kafka loses a Ctrl-C that comes within a request.
        return in_own_thread(partial(admin.list_topics, timeout=_REQUEST_TIMEOUT_S))
    except (OSError, KafkaException):
        return None


def is_ready(port: int, cluster_id: str, brokers: Collection[int] = ()) -> bool:
    """Whether the broker on this port answers for *this* cluster, and these are alive; at least one is."""
    seen = ask_broker(port)
    return seen is not None and seen.cluster_id == cluster_id and bool(seen.brokers) and {*brokers} <= {*seen.brokers}


def wait_until_ready(
    port: int, cluster_id: str, has_ended: Callable[[], bool], timeout: float, brokers: Collection[int]
) -> bool:
    """Wait until `is_ready`. False when `timeout` seconds have passed or the broker has ended."""
    deadline = Deadline(timeout)
    while not deadline.is_over and not has_ended():
        if is_ready(port, cluster_id, brokers):
            return True
        time.sleep(_POLL_S)
    return False
