"""A real Kafka as child processes: one node, or a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from txbridge.deadline import Deadline
from txbridge.embedded import datadir, fencing
from txbridge.embedded.config import (
    BrokerPorts,
    JvmProfile,
    SecureListener,
    broker_properties,
    check_heap,
    check_overrides,
    check_profile,
    cluster_properties,
)
from txbridge.embedded.datadir import DataDir, new_cluster_id
from txbridge.embedded.jars import KAFKA_VERSION, JarCache, locked_version
from txbridge.embedded.java import PORT_LOST, Java, KafkaStartError, find_java
from txbridge.embedded.node import START_TIMEOUT_S, STOP_TIMEOUT_S, JavaRuntime, Launch, Node
from txbridge.embedded.ports import HOST, require_free
from txbridge.embedded.process import stop_together
from txbridge.errors import EnvironmentProblemError, UsageError

# Brokers started at the same moment can choose the same free port; three times in a row is not a coincidence.
_PORT_ATTEMPTS = 3
# The largest heap of a JVM. Each of several nodes has only a part of the partitions.
_HEAP, _HEAP_OF_SEVERAL = "512m", "256m"


class EmbeddedKafka:
    """Apache Kafka on the loopback address: one node that is broker and controller, or a cluster.

        with EmbeddedKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

        with EmbeddedKafka(brokers=3) as kafka:
            kafka.brokers[0].kill()
            kafka.brokers[0].start()

    Needs Java 17; the jars are fetched once into a cache. Kafka ends with this process, however that ends.
    All methods may be called from any thread.

    Args:
        port: for clients; of several brokers, the port of the first. None chooses free ports, which `restart` keeps.
        data_dir: the folder of Kafka, kept for the next start. None makes a temporary folder that `stop` deletes.
        config: broker settings by Kafka's names. They win over the defaults made for tests.
        heap: the largest heap of each JVM, as Java writes it. Default: 512m for one node, 256m for each of several.
        brokers: 1, or 3 and more. Several have replication factor 3 and `min.insync.replicas` 2 by default, also for
            Kafka's own topics. The first three are controllers as well: any one of them may be lost.
        kafka_version: a release such as "4.0", or its locked version. See `KAFKA_VERSIONS`.
        jvm_profile: "fast-start" for tests, "throughput" for demos and measurements.
        secure_port: one node also listens here, with TLS, SASL and ACLs: see `secure`. 0 chooses a free port.

    Raises:
        UsageError: an argument cannot work.

    """

    def __init__(
        self,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
        heap: str | None = None,
        *,
        brokers: int = 1,
        kafka_version: str = KAFKA_VERSION,
        jvm_profile: JvmProfile = "fast-start",
        secure_port: int | None = None,
    ) -> None:
        self._size = datadir.check_size(brokers)
        self._wanted_port = datadir.check_port(port, brokers)
        self._wanted_secure_port = datadir.check_secure_port(secure_port, port, brokers)
        self._port = port
        self._secure: SecureListener | None = None
        self._wanted_data_dir = Path(data_dir).expanduser().absolute() if data_dir is not None else None
        self._data_dir = self._wanted_data_dir
        self._overrides = check_overrides(config or {}, brokers)
        self._heap = check_heap(heap if heap is not None else _HEAP if brokers == 1 else _HEAP_OF_SEVERAL)
        self._profile = check_profile(jvm_profile)
        #: As in "4.3.1".
        self.version = locked_version(kafka_version)
        self._fences = fencing.is_needed(self.version)
        self._jars = JarCache(version=self.version)
        self._nodes: dict[int, Node] = {}
        self._ports: list[BrokerPorts] = []
        self._lock = threading.RLock()

    @property
    def port(self) -> int:
        """The port for clients; of several brokers, that of the first. UsageError before `start` has chosen it."""
        if self._port is None:
            raise UsageError("this Kafka has no port before start() has chosen one")
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """The value for `bootstrap.servers`: "127.0.0.1:port" of each broker."""
        if self._size == 1:
            return f"{HOST}:{self.port}"
        return ",".join(node.bootstrap_servers for node in self.brokers)

    @property
    def secure(self) -> SecureListener:
        """The listener of `secure_port`, with the settings of its users. UsageError before `start`, or without one."""
        if self._secure is None:
            raise UsageError("this Kafka has no secure listener: give secure_port, and start it")
        return self._secure

    @property
    def brokers(self) -> list[Node]:
        """The brokers, in the order of their ids. UsageError before the first start."""
        return list(self._started_nodes().values())

    @property
    def pid(self) -> int:
        """The process id of the JVM; of several, that of the first broker. UsageError while it does not run."""
        return self._first_node().pid

    @property
    def data_dir(self) -> Path:
        """The folder of Kafka. UsageError before the first start if it is to be a temporary one."""
        if self._data_dir is None:
            raise UsageError("this Kafka has no data folder before start() has made one")
        return self._data_dir

    @property
    def log_file(self) -> Path:
        """Kafka's own log; of several brokers, that of the first. The JVM's output is in console.log beside it."""
        return self._first_node().log_file if self._nodes else DataDir(self.data_dir).server_log

    def is_running(self) -> bool:
        """Whether a process exists (a paused one does)."""
        return any(node.is_running() for node in self._nodes.values())

    def start(self, timeout: float = START_TIMEOUT_S, *, may_detach: bool = False) -> Self:
        """Start Kafka and wait until all brokers answer.

        `timeout` is in seconds and begins when the jars are there: a first start fetches them before. `may_detach`
        makes `detach` possible; then a kill -9 of the supervisor, the process between us and Java, leaves Java alive.

        Raises:
            UsageError: it runs already.
            EnvironmentProblemError: no Java, no jars, no space, a taken port, a data folder in use or not writable.
            KafkaStartError: a node ended or did not answer in time.

        """
        with self._lock:
            if self.is_running():
                raise UsageError(f"this Kafka runs already, on {self.bootstrap_servers}")
            java = find_java()
            self._jars.ensure_jars()
            new_folder = self._data_dir is None
            if self._data_dir is None:
                self._data_dir = Path(tempfile.mkdtemp(prefix="txbridge-kafka-"))
            try:
                if not self._nodes:
                    self._nodes = self._make_nodes(self._data_dir)
                self._start_nodes(java, Deadline(timeout), may_detach=may_detach)
            except BaseException as error:
                if new_folder:
                    self._delete_temporary(keep_logs=isinstance(error, KafkaStartError))
                raise
            return self

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds; then delete a temporary data folder.

        Several nodes whose data are deleted are killed at once. Returns when all have ended. Does nothing if none runs.
        """
        with self._lock:
            try:
                if self._size > 1 and self._wanted_data_dir is None:
                    self.kill()
                else:
                    self._stop_nodes(timeout)
            finally:
                self._delete_temporary()

    def kill(self) -> None:
        """Send SIGKILL to all nodes. The data stay for `start` or `restart`."""
        with self._lock:
            for node in self._nodes.values():
                node.kill()

    def restart(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Stop all cleanly if they run, then start on the same ports with the same data."""
        with self._lock:
            self._stop_nodes(STOP_TIMEOUT_S)
            return self.start(timeout)

    def pause(self) -> None:
        """Send SIGSTOP to all nodes: connections stay open, nothing answers."""
        for node in self._started_nodes().values():
            node.pause()

    def resume(self) -> None:
        """Send SIGCONT to all nodes."""
        for node in self._started_nodes().values():
            node.resume()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until all have ended by themselves. Return the exit code of the first broker (128 + n after signal n).

        None after `timeout` s.
        """
        deadline = Deadline(timeout)
        codes = []
        for node in self._nodes.values():
            codes.append(node.wait(deadline.timeout))
            if codes[-1] is None:
                return None
        return codes[0] if codes else None

    def detach(self) -> None:
        """Let Kafka outlive this process; only after `start(may_detach=True)`. This object no longer controls it."""
        with self._lock:
            first = self._first_node()
            if not first.is_running():
                raise UsageError("this Kafka does not run; call start() first")
            if first.state is None or not first.state.detached:
                raise UsageError("only a broker started with may_detach=True can be detached")
            for node in self._nodes.values():
                if node.is_running():
                    node.detach()

    def __enter__(self) -> Self:
        return self if self.is_running() else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _first_node(self) -> Node:
        return self._started_nodes()[1]

    def _started_nodes(self) -> dict[int, Node]:
        if not self._nodes:
            raise UsageError("this Kafka does not run; call start() first")
        return self._nodes

    def _make_nodes(self, data_dir: Path) -> dict[int, Node]:
        folders = datadir.choose_folders(data_dir, self._size)
        return {number: Node(number, DataDir(path), self._lock) for number, path in folders.items()}

    def _start_nodes(self, java: Java, deadline: Deadline, *, may_detach: bool) -> None:
        runtime = JavaRuntime(java, self._jars.class_path, self._heap, self._profile, self.version)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_once(runtime, deadline, may_detach=may_detach)
            except KafkaStartError as error:
                if attempt == _PORT_ATTEMPTS or not re.search(PORT_LOST, error.output):
                    raise
                self._forget_ports()
            else:
                return

    def _start_once(self, runtime: JavaRuntime, deadline: Deadline, *, may_detach: bool) -> None:
        nodes = list(self._nodes.values())
        scratch = None if self._wanted_data_dir else self._data_dir
        try:
            with contextlib.ExitStack() as claims:
                locks = [claims.enter_context(node.claim_folder()) for node in nodes]
                properties = self._choose_properties(runtime.java)
                cluster_id = self._prepare_folders(runtime, properties)
                ports = {one.node_id: one.port for one in self._ports}
                for node, lock in zip(nodes, locks, strict=True):
                    node.launch_process(
                        Launch(runtime, ports.get(node.node_id, 0), cluster_id, may_detach, scratch), lock
                    )
            brokers = self.brokers
            for broker in brokers:
                broker.wait_ready(deadline.left, brokers)
            if self._secure is not None:
                self._secure.make_superuser()
        except BaseException:
            self.kill()
            raise

    def _choose_properties(self, java: Java) -> dict[int, dict[str, str]]:
        """Choose the ports that are not chosen yet, and return the properties of each node."""
        # A single node keeps the clients' port alone: nobody else knows that of its controller.
        if self._size == 1 or not self._ports:
            self._ports = datadir.choose_ports(self._size, self._port)
        self._port = self._ports[0].port
        for one in self._ports:
            require_free(one.port)
        folders = {number: node.data.kafka for number, node in self._nodes.items()}
        if self._size == 1:
            overrides = self._overrides if self._fences else fencing.OWN_SESSION | self._overrides
            controller = self._ports[0].controller
            if self._wanted_secure_port is not None:
                overrides = self._prepare_secure(java).properties(self._port, controller) | overrides
            return {1: broker_properties(self._port, controller, folders[1], overrides)}
        return {
            one.node_id: cluster_properties(one, self._ports, folders[one.node_id], self._overrides)
            for one in self._ports
        }

    def _prepare_secure(self, java: Java) -> SecureListener:
        """The listener with TLS, on the port that it had before or on one that no other listener has."""
        if self._secure is None:
            # Only brokers of a cluster use their internal port.
            port = self._wanted_secure_port or self._ports[0].internal
            self._secure = SecureListener(self.data_dir / "secure", port, self.bootstrap_servers)
        require_free(self._secure.port, "secure_port")
        with self._nodes[1].data.os_errors():
            self._secure.make_keys(java.executable.with_name("keytool"))
        return self._secure

    def _prepare_folders(self, runtime: JavaRuntime, properties: Mapping[int, Mapping[str, str]]) -> str:
        """Write the configuration and format new folders; returns the cluster id."""
        nodes = list(self._nodes.values())
        for node in nodes:
            node.data.write_config(properties[node.node_id])
        known = {found for node in nodes if (found := node.data.cluster_id()) is not None}
        if len(known) > 1:
            raise EnvironmentProblemError(
                f"the nodes in {self.data_dir} belong to different clusters: use another folder (--data-dir, in Python "
                "data_dir=...)"
            )
        if known and self._size == 1 and self._fences:
            controller = self._ports[0].controller
            fencing.fence_former_broker(nodes[0].data, controller, self._overrides, runtime.java_command)
        cluster_id = known.pop() if known else new_cluster_id()
        # At the same time: each one takes half a second, and half of that is waiting.
        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(lambda node: node.format_folder(cluster_id, runtime), nodes))
        return cluster_id

    def _stop_nodes(self, timeout: float) -> None:
        stop_together(list(self._nodes.values()), timeout)

    def _delete_temporary(self, *, keep_logs: bool = False) -> None:
        """Delete the folder if it is a temporary one; a failed start keeps the logs, which its message names."""
        if self._wanted_data_dir is None and self._data_dir is not None:
            folders = [node.data.kafka for node in self._nodes.values()] if keep_logs else [self._data_dir]
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            self._data_dir = None
            self._nodes = {}
        self._forget_ports()

    def _forget_ports(self) -> None:
        self._port, self._ports, self._secure = self._wanted_port, [], None
