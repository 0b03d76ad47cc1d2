"""A real Kafka as child processes: one node, or a cluster."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from txbridge.deadline import Deadline
from txbridge.embedded import cds, fencing, layout
from txbridge.embedded.artifacts import KAFKA_VERSION, locked_version
from txbridge.embedded.config import (
    JvmProfile,
    Member,
    broker_properties,
    check_heap,
    check_overrides,
    check_profile,
    member_properties,
)
from txbridge.embedded.datadir import DataDir, child_environment, new_cluster_id
from txbridge.embedded.diagnose import PORT_LOST, KafkaStartError
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import Java, find_java
from txbridge.embedded.links import Links
from txbridge.embedded.node import START_TIMEOUT_S, STOP_TIMEOUT_S, Launch, Node, Runtime
from txbridge.embedded.ports import HOST, free_port, require_free
from txbridge.embedded.ready import out_of_sync
from txbridge.embedded.state import BrokerState
from txbridge.embedded.stopping import stop_together
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.interrupts import in_own_thread

# Brokers started at the same moment can choose the same free port; three times in a row is no coincidence any more.
_PORT_ATTEMPTS = 3
# Seconds for each step of the temporary broker that makes a class-data archive. The slowest, its stop with the
# dump of the archive, takes 3 s on two idle cores.
_TRAINING_TIMEOUT_S = 60.0
# Exit codes of a JVM that crashed by itself: SIGABRT and SIGSEGV.
_CRASHED = (134, 139)
# The largest heap of a JVM. Each of several nodes has only a part of the partitions.
_HEAP, _HEAP_OF_SEVERAL = "512m", "256m"
# A follower is in sync again within a second or two of a restart: this adds little.
_IN_SYNC_POLL_S = 0.1
# Partitions that an error names.
_NAMED = 10


class EmbeddedKafka:
    """Apache Kafka on the loopback address: one node that is broker and controller, or a cluster.

        with EmbeddedKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

        with EmbeddedKafka(brokers=3) as kafka:
            kafka.brokers[0].kill()
            kafka.brokers[0].start()
            kafka.wait_in_sync()

    Needs Java 17; the jars are fetched once into a cache. Kafka ends with this process, however that ends.
    All methods may be called from any thread.

    Args:
        port: for clients; of several brokers, the port of the first. None chooses free ports, which `restart` keeps.
        data_dir: the folder of Kafka, kept for the next start. None makes a temporary folder that `stop` deletes.
        config: broker settings by Kafka's names. They win over the defaults made for tests.
        heap: the largest heap of each JVM, as Java writes it. Default: 512m for one node, 256m for each of several.
        cache_dir: the folder for the jars (default: TXBRIDGE_CACHE_DIR, XDG_CACHE_HOME/txbridge, ~/.cache/txbridge).
        brokers: 1, or 3 and more. Several have replication factor 3 and `min.insync.replicas` 2 by default, also for
            Kafka's own topics. The first three are controllers as well: any one of them may be lost.
        separate_controllers: run the controllers in three further processes. Brokers can then be lost without them.
        can_cut_off: connect the nodes through a process of ours, so that `cut_off` of a node works.
        kafka_version: a release such as "4.0", or its locked version. See `KAFKA_VERSIONS`.
        jvm_profile: "fast-start" for tests, "throughput" for demos and measurements.
        extra_jvm_flags: added to the profile's.
        class_data_archive: make (once per Java) and use an archive of parsed classes, which halves the start.

    Raises:
        UsageError: an argument cannot work.

    """

    def __init__(
        self,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
        heap: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        brokers: int = 1,
        separate_controllers: bool = False,
        can_cut_off: bool = False,
        kafka_version: str = KAFKA_VERSION,
        jvm_profile: JvmProfile = "fast-start",
        extra_jvm_flags: Sequence[str] = (),
        class_data_archive: bool = True,
    ) -> None:
        self._size = layout.check_size(brokers)
        if brokers == 1 and (separate_controllers or can_cut_off):
            raise UsageError("separate_controllers and can_cut_off are for several brokers: give brokers=3 as well")
        self._wanted_port = layout.check_port(port, brokers)
        self._port = port
        self._wanted_data_dir = Path(data_dir).expanduser().absolute() if data_dir is not None else None
        self._data_dir = self._wanted_data_dir
        self._overrides = check_overrides(config or {}, brokers)
        self._heap = check_heap(heap if heap is not None else _HEAP if brokers == 1 else _HEAP_OF_SEVERAL)
        self._profile = check_profile(jvm_profile)
        self._extra_jvm_flags = list(extra_jvm_flags)
        #: As in "4.3.1".
        self.version = locked_version(kafka_version)
        self._fences = fencing.is_needed(self.version)
        self._jars = JarCache(cache_dir, self.version)
        self._use_archive = class_data_archive
        self._separate_controllers = separate_controllers
        self._can_cut_off = can_cut_off
        self._nodes: dict[int, Node] = {}
        self._members: list[Member] = []
        self._controller_port = 0
        self._links: Links | None = None
        self._owner = os.getpid()
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
    def brokers(self) -> list[Node]:
        """The brokers, in the order of their ids. UsageError before the first start."""
        return [node for node in self._started() if node.node_id < layout.CONTROLLER_IDS]

    @property
    def controllers(self) -> list[Node]:
        """The nodes that vote about the metadata. UsageError before the first start."""
        if self._separate_controllers:
            return [node for node in self._started() if node.node_id > layout.CONTROLLER_IDS]
        return self.brokers[: layout.QUORUM]

    @property
    def pid(self) -> int:
        """The process id of the JVM; of several, that of the first broker. UsageError while it does not run."""
        return self._first().pid

    @property
    def data_dir(self) -> Path:
        """The folder of Kafka. UsageError before the first start if it is to be a temporary one."""
        if self._data_dir is None:
            raise UsageError("this Kafka has no data folder before start() has made one")
        return self._data_dir

    @property
    def log_file(self) -> Path:
        """Kafka's own log; of several brokers, that of the first. The JVM's output is in console.log beside it."""
        return self._first().log_file if self._nodes else DataDir(self.data_dir).server_log

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
            if may_detach and self._can_cut_off:
                raise UsageError("a Kafka whose nodes can be cut off cannot be detached: its links end with us")
            java = find_java()
            self._jars.ensure()
            archive = self._archive(java)
            self._owner = os.getpid()
            _live.add(self)
            new_folder = self._data_dir is None
            if self._data_dir is None:
                self._data_dir = Path(tempfile.mkdtemp(prefix="txbridge-kafka-"))
            try:
                if not self._nodes:
                    self._nodes = self._make_nodes(self._data_dir)
                self._start_on(java, archive, Deadline(timeout), may_detach=may_detach)
            except BaseException as error:
                if new_folder:
                    self._forget_temporary(keep_logs=isinstance(error, KafkaStartError))
                raise
            return self

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds; then delete a temporary data folder.

        Several nodes whose data are deleted are killed at once. Returns when all are gone. Does nothing if none runs.
        """
        with self._lock:
            try:
                if self._size > 1 and self._wanted_data_dir is None:
                    self.kill()
                else:
                    self._end(timeout)
            finally:
                self._forget_temporary()

    def kill(self) -> None:
        """Send SIGKILL to all nodes. The data stay for `start` or `restart`."""
        with self._lock:
            for node in self._nodes.values():
                node.kill()
            self._close_links()

    def restart(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Stop all cleanly if they run, then start on the same ports with the same data."""
        with self._lock:
            self._end(STOP_TIMEOUT_S)
            return self.start(timeout)

    def pause(self) -> None:
        """Send SIGSTOP to all nodes: connections stay open, nothing answers."""
        for node in self._started():
            node.pause()

    def resume(self) -> None:
        """Send SIGCONT to all nodes."""
        for node in self._started():
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

    def wait_in_sync(self, timeout: float = START_TIMEOUT_S) -> None:
        """Wait until every partition has a leader and all of its replicas in sync: a rolling restart may go on.

        Raises:
            EnvironmentProblemError: not all replicas are in sync after `timeout` s.

        """
        deadline = Deadline(timeout)
        ports = [port for node in self.brokers if (port := self._port_of(node)) is not None]
        while missing := out_of_sync(ports):
            if deadline.is_over:
                what = ", ".join(missing[:_NAMED])
                raise EnvironmentProblemError(f"not all replicas are in sync after {timeout:.0f} s: {what}")
            time.sleep(_IN_SYNC_POLL_S)

    def detach(self) -> BrokerState:
        """Let Kafka outlive this process; only after `start(may_detach=True)`. This object no longer controls it.

        Returns the state of the first broker.
        """
        with self._lock:
            first = self._first()
            if not first.is_running():
                raise UsageError("this Kafka does not run; call start() first")
            if first.state is None or not first.state.detached:
                raise UsageError("only a broker started with may_detach=True can be detached")
            for node in self._nodes.values():
                if node.is_running():
                    node.detach()
            _live.discard(self)
            return first.state

    def __enter__(self) -> Self:
        return self if self.is_running() else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _first(self) -> Node:
        if not self._nodes:
            raise UsageError("this Kafka does not run; call start() first")
        return self._nodes[1]

    def _started(self) -> list[Node]:
        self._first()
        return list(self._nodes.values())

    def _make_nodes(self, data_dir: Path) -> dict[int, Node]:
        found = layout.folders(data_dir, self._size, separate_controllers=self._separate_controllers)
        return {number: Node(number, DataDir(path), self._lock) for number, path in found.items()}

    def _archive(self, java: Java) -> Path | None:
        if not self._use_archive or not cds.supports_archives(java):
            return None
        archive = cds.archive_path(self._jars.folder, java)
        return archive if cds.ensure_archive(archive, self._train) else None

    def _train(self, archive: Path) -> None:
        """Make a class-data archive with a temporary broker, whose JVM writes the archive at its end."""
        Console(stderr=True).print("Preparing Kafka's classes for faster starts, once for this Java.")
        kafka = EmbeddedKafka(
            cache_dir=self._jars.root,
            kafka_version=self.version,
            extra_jvm_flags=cds.dump_flags(archive),
            class_data_archive=False,
        )
        try:
            kafka.start(_TRAINING_TIMEOUT_S)
            # A KeyboardInterrupt in the middle of confluent-kafka would be lost.
            in_own_thread(lambda: cds.exercise(kafka.bootstrap_servers, _TRAINING_TIMEOUT_S))
        finally:
            kafka.stop(_TRAINING_TIMEOUT_S)

    def _start_on(self, java: Java, archive: Path | None, deadline: Deadline, *, may_detach: bool) -> None:
        attempt = 1
        while True:
            runtime = Runtime(java, archive, self._jars.class_path, self._heap, self._profile, self.version)
            try:
                self._start_once(runtime, deadline, may_detach=may_detach)
            except KafkaStartError as error:
                if archive is not None and error.exit_code in _CRASHED:
                    cds.give_up(archive, str(error))
                    archive = None
                elif re.search(PORT_LOST, error.output) and attempt < _PORT_ATTEMPTS:
                    attempt += 1
                    self._port = self._wanted_port
                    self._members = []
                else:
                    raise
            else:
                return

    def _start_once(self, runtime: Runtime, deadline: Deadline, *, may_detach: bool) -> None:
        nodes = self._started()
        try:
            with contextlib.ExitStack() as claims:
                locks = [claims.enter_context(node.claim()) for node in nodes]
                properties = self._choose_properties(nodes)
                cluster_id = self._prepare(nodes, runtime, properties)
                for node, lock in zip(nodes, locks, strict=True):
                    launch = Launch(
                        runtime=runtime,
                        port=self._port_of(node),
                        cluster_id=cluster_id,
                        extra_flags=self._extra_jvm_flags,
                        may_detach=may_detach,
                        scratch=None if self._wanted_data_dir else self._data_dir,
                        links=self._links,
                    )
                    node.launch(launch, lock)
            self._wait_ready(deadline)
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self, deadline: Deadline) -> None:
        nodes, brokers = self._started(), self.brokers
        expected = {node.node_id for node in brokers}
        for broker in brokers:
            if not broker.answers(deadline.left, expected, lambda: not all(node.is_running() for node in nodes)):
                # A node that has ended has the reason in its log. Otherwise blame the one that does not answer.
                raise next((node for node in nodes if not node.is_running()), broker).start_error()

    def _choose_properties(self, nodes: Sequence[Node]) -> dict[int, dict[str, str]]:
        """Choose the ports, unless they are chosen, and return the properties of each node."""
        if self._size == 1:
            self._port = self._port or free_port()
            require_free(self._port)
            controller = free_port()
            while controller == self._port:
                controller = free_port()
            self._controller_port = controller
            overrides = self._overrides if self._fences else fencing.OWN_SESSION | self._overrides
            return {1: broker_properties(self._port, controller, nodes[0].data.kafka, overrides)}
        if not self._members:
            ids = [node.node_id for node in nodes]
            self._members = layout.choose_members(
                ids, self._port, separate_controllers=self._separate_controllers, with_links=self._can_cut_off
            )
            self._port = self._members[0].port
        for member in self._members[: self._size]:
            require_free(member.port)
        if self._can_cut_off:
            ways = {one.node_id: layout.ways(one) for one in self._members}
            # Known before the wait, so that an error ends the process.
            self._links = Links(ways, self.data_dir, child_environment())
            self._links.wait()
        return {
            one.node_id: member_properties(one, self._members, node.data.kafka, self._overrides)
            for one, node in zip(self._members, nodes, strict=True)
        }

    def _port_of(self, node: Node) -> int | None:
        if self._size == 1:
            return self._port
        return next(one.port for one in self._members if one.node_id == node.node_id) or None

    def _prepare(self, nodes: Sequence[Node], runtime: Runtime, properties: Mapping[int, Mapping[str, str]]) -> str:
        """Write the configuration and format new folders; returns the cluster id."""
        for node in nodes:
            node.data.write_config(properties[node.node_id])
        known = {found for node in nodes if (found := node.data.cluster_id()) is not None}
        if len(known) > 1:
            raise EnvironmentProblemError(
                f"the nodes in {self.data_dir} belong to different clusters: use another folder (--data-dir, in Python "
                "data_dir=...)"
            )
        if known and self._size == 1 and self._fences:
            fencing.fence_former_broker(
                nodes[0].data, self._controller_port, self._overrides, runtime.command, child_environment()
            )
        cluster_id = known.pop() if known else new_cluster_id()
        # At the same time: each one takes half a second, and half of that is waiting.
        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(lambda node: node.format(cluster_id, runtime), nodes))
        return cluster_id

    def _end(self, timeout: float) -> None:
        """Stop the brokers first: they can hand over their leaderships only while controllers run."""
        with self._lock:
            try:
                if self._nodes:
                    stop_together(self.brokers, timeout)
                    stop_together(self._started(), timeout)
            finally:
                self._close_links()

    def _close_links(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None

    def _forget_temporary(self, *, keep_logs: bool = False) -> None:
        """Delete the folder if it is a temporary one; a failed start keeps the logs, which its message names."""
        _live.discard(self)
        if self._wanted_data_dir is None and self._data_dir is not None:
            gone = [node.data.kafka for node in self._nodes.values()] if keep_logs else [self._data_dir]
            for folder in gone:
                shutil.rmtree(folder, ignore_errors=True)
            self._data_dir = None
            self._nodes = {}
        self._port = self._wanted_port
        self._members = []


# Kafkas (or temporary folders) that this process still has to end.
_live: set[EmbeddedKafka] = set()


@atexit.register
def _stop_all() -> None:
    for kafka in list(_live):
        if kafka._owner == os.getpid():  # noqa: SLF001 - a fork does not own its parent's brokers
            with contextlib.suppress(Exception):
                kafka.stop()
