"""A real single-node Kafka as a child process."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from txbridge.embedded import cds
from txbridge.embedded.artifacts import KAFKA_VERSION
from txbridge.embedded.config import JvmProfile, check_heap, check_overrides, check_profile, jvm_flags
from txbridge.embedded.datadir import DataDir, child_environment
from txbridge.embedded.diagnose import PORT_LOST, KafkaStartError, describe_failure, read_tail
from txbridge.embedded.fencing import fence_former_broker
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import Java, find_java
from txbridge.embedded.ports import HOST, free_port, require_free
from txbridge.embedded.process import ChildProcess
from txbridge.embedded.ready import wait_until_ready
from txbridge.embedded.state import BrokerState, data_lock, process_identity, remove_state, write_state
from txbridge.errors import UsageError

#: Seconds. A start takes 1 s (2 s on the data of an earlier one) on two idle cores; the rest is for machines that have
#: far more to do: with a load of 44 on two cores 60 s were too few.
START_TIMEOUT_S = 180.0
#: Seconds. A clean stop takes 0.3 s when idle; flushing many partitions on a slow disk takes longer.
STOP_TIMEOUT_S = 15.0

# Brokers started at the same moment can choose the same free port; three times in a row is no coincidence any more.
_PORT_ATTEMPTS = 3
# Seconds for each step of the throw-away broker that a class-data archive is made with. The slowest, its stop with the
# dump of the archive, takes 3 s on two idle cores.
_TRAINING_TIMEOUT_S = 60.0
# Exit codes of a JVM that crashed by itself: SIGABRT and SIGSEGV.
_CRASHED = (134, 139)


class EmbeddedKafka:
    """Apache Kafka 4.3.1, broker and controller in one process, on the loopback address.

        with EmbeddedKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    Needs Java 17; the jars are fetched once into a cache. The broker ends with this process, however that ends.
    All methods may be called from any thread.

    Args:
        port: where clients connect; None chooses a free port, which `restart` keeps.
        data_dir: what the broker writes, kept for the next start; None makes a temporary folder that `stop` deletes.
        config: broker settings by Kafka's names, which win over the defaults made for one node and tests.
        heap: the largest heap of the JVM, as Java writes it.
        cache_dir: the folder for the jars (default: TXBRIDGE_CACHE_DIR, XDG_CACHE_HOME/txbridge, ~/.cache/txbridge).
        jvm_profile: "fast-start" for tests, "throughput" for demos and measurements.
        extra_jvm_flags: added to the profile's.
        class_data_archive: make (once per Java) and use an archive of parsed classes, which halves the start.

    Raises:
        UsageError: an argument can not work.

    """

    def __init__(
        self,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
        heap: str = "512m",
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        jvm_profile: JvmProfile = "fast-start",
        extra_jvm_flags: Sequence[str] = (),
        class_data_archive: bool = True,
    ) -> None:
        if port is not None and not 1 <= port <= 65_535:
            raise UsageError(f"port must be between 1 and 65535, or None for a free one, not {port}")
        self._wanted_port = port
        self._port = port
        self._wanted_data_dir = Path(data_dir).expanduser().absolute() if data_dir is not None else None
        self._data: DataDir | None = DataDir(self._wanted_data_dir) if self._wanted_data_dir else None
        self._overrides = check_overrides(config or {})
        self._heap = check_heap(heap)
        self._profile = check_profile(jvm_profile)
        self._extra_jvm_flags = list(extra_jvm_flags)
        self._jars = JarCache(cache_dir)
        self._use_archive = class_data_archive
        self._child: ChildProcess | None = None
        self._state: BrokerState | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()

    @property
    def port(self) -> int:
        """Where clients connect. UsageError before the first start if a free port is to be chosen."""
        if self._port is None:
            raise UsageError("this Kafka has no port before start() has chosen one")
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """The value for `bootstrap.servers`: "127.0.0.1:port"."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the JVM. UsageError while it does not run."""
        return self._running().pid

    @property
    def data_dir(self) -> Path:
        """The folder of the broker. UsageError before the first start if it is to be a temporary one."""
        if self._data is None:
            raise UsageError("this Kafka has no data folder before start() has made one")
        return self._data.path

    @property
    def log_file(self) -> Path:
        """Kafka's own log; the JVM's output is in console.log beside it."""
        return self.data_dir / "logs" / "server.log"

    def is_running(self) -> bool:
        """Whether the process exists (a paused one does)."""
        child = self._child
        return child is not None and child.poll() is None

    def start(self, timeout: float = START_TIMEOUT_S, *, may_detach: bool = False) -> Self:
        """Start the broker and wait until it answers.

        `timeout` is in seconds and begins when the jars are there: a first start fetches them before. `may_detach`
        keeps `detach` possible, at the price that kill -9 of the small process between us and Java leaves Java alive.

        Raises:
            UsageError: it runs already.
            EnvironmentProblemError: no Java, no jars, no space, a taken port, a data folder in use or not writable.
            KafkaStartError: the broker ended or did not answer in time.

        """
        with self._lock:
            if self.is_running():
                raise UsageError(f"this Kafka runs already, on {self.bootstrap_servers}")
            java = find_java()
            self._jars.ensure()
            archive = self._archive(java)
            self._owner = os.getpid()
            _live.add(self)
            new_folder = self._data is None
            if self._data is None:
                self._data = DataDir(Path(tempfile.mkdtemp(prefix="txbridge-kafka-")))
            try:
                self._start_on(self._data, java, archive, time.monotonic() + timeout, may_detach=may_detach)
            except BaseException as error:
                if new_folder:
                    self._forget_temporary(keep_logs=isinstance(error, KafkaStartError))
                raise
            return self

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, up to `timeout` seconds of patience, SIGKILL; then delete a temporary data folder.

        Returns when the process is gone. Does nothing if it does not run.
        """
        with self._lock:
            try:
                self._end(lambda child: child.stop(timeout))
            finally:
                self._forget_temporary()

    def kill(self) -> None:
        """SIGKILL; the data stay for `start` or `restart`."""
        with self._lock:
            self._end(ChildProcess.kill)

    def restart(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Stop cleanly if it runs, then start on the same port with the same data."""
        with self._lock:
            self._end(lambda child: child.stop(STOP_TIMEOUT_S))
            return self.start(timeout)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._running().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._running().resume()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the broker ends by itself. Its exit code (128 + n after signal n), None after `timeout` s."""
        return self._child.wait(timeout) if self._child is not None else None

    def detach(self) -> BrokerState:
        """Let the broker outlive this process; only after `start(may_detach=True)`. This object then forgets it."""
        with self._lock:
            child = self._running()
            if self._state is None or not self._state.detached:
                raise UsageError("only a broker started with may_detach=True can be detached")
            child.detach()
            self._child = None
            _live.discard(self)
            return self._state

    def __enter__(self) -> Self:
        return self if self.is_running() else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> ChildProcess:
        if self._child is None or not self.is_running():
            raise UsageError("this Kafka does not run; call start() first")
        return self._child

    def _archive(self, java: Java) -> Path | None:
        if not self._use_archive or not cds.supports_archives(java):
            return None
        archive = cds.archive_path(self._jars.folder, java)
        return archive if cds.ensure_archive(archive, lambda path: _train(path, self._jars.root)) else None

    def _start_on(self, data: DataDir, java: Java, archive: Path | None, deadline: float, *, may_detach: bool) -> None:
        attempt = 1
        while True:
            try:
                self._start_once(data, java, archive, deadline, may_detach=may_detach)
            except KafkaStartError as error:
                if archive is not None and error.exit_code in _CRASHED:
                    cds.give_up(archive, str(error))
                    archive = None
                elif PORT_LOST in error.output and attempt < _PORT_ATTEMPTS:
                    self._port = self._wanted_port
                else:
                    raise
                attempt += 1
            else:
                return

    def _start_once(
        self, data: DataDir, java: Java, archive: Path | None, deadline: float, *, may_detach: bool
    ) -> None:
        data.prepare()
        with data_lock(data.path) as lock:
            self._port = self._port or free_port()
            require_free(self._port)
            controller_port = free_port()
            while controller_port == self._port:
                controller_port = free_port()
            data.write_config(self._port, controller_port, self._overrides)

            def java_command(logs: Path, log_config: Path, *more: str) -> list[str | Path]:
                flags = [*(cds.use_flags(archive) if archive else ())]
                flags += jvm_flags(self._profile, self._heap, logs, log_config)
                return [java.executable, *flags, *more, "-cp", self._jars.class_path]

            env = child_environment()
            if data.cluster_id() is not None:
                fence_former_broker(data, controller_port, self._overrides, java_command, env)
            cluster_id = data.ensure_formatted(java_command(data.logs, data.log_config), env)

            log_start = data.server_log.stat().st_size if data.server_log.exists() else 0
            data.console_log.unlink(missing_ok=True)
            child = ChildProcess.launch(
                [*java_command(data.logs, data.log_config, *self._extra_jvm_flags), "kafka.Kafka", data.properties],
                output=data.console_log,
                may_detach=may_detach,
                scratch=None if self._wanted_data_dir else data.path,
                kept_file=lock,
                env=env,
            )
            try:
                self._state = BrokerState(
                    pid=child.pid,
                    identity=process_identity(child.pid) or "gone",
                    port=self._port,
                    version=KAFKA_VERSION,
                    cluster_id=cluster_id,
                    detached=may_detach,
                )
                with data.os_errors():
                    write_state(data.path, self._state)
                remaining = deadline - time.monotonic()
                ready = wait_until_ready(self._port, cluster_id, lambda: child.poll() is not None, remaining)
                code = child.poll()
            except BaseException:
                child.kill()
                remove_state(data.path)
                raise
            if ready:
                self._child = child
                return
            child.kill()
            remove_state(data.path)
            raise self._start_error(data, code, log_start)

    @staticmethod
    def _start_error(data: DataDir, code: int | None, log_start: int) -> KafkaStartError:
        said = read_tail(data.server_log, log_start)
        output = read_tail(data.console_log) + said
        what = (
            "Kafka did not answer in time (on a machine that is just slow, allow it more: --timeout, in Python "
            "start(timeout=...))"
            if code is None
            else f"Kafka ended with exit code {code} while it was starting"
        )
        message = describe_failure(what, output, data.server_log if said else data.console_log)
        return KafkaStartError(message, code, output)

    def _end(self, how: Callable[[ChildProcess], None]) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        try:
            how(child)
        finally:
            if self._data is not None:
                remove_state(self._data.path)

    def _forget_temporary(self, *, keep_logs: bool = False) -> None:
        """Delete the folder if it is a temporary one; a failed start keeps the logs, which its message names."""
        _live.discard(self)
        if self._wanted_data_dir is None and self._data is not None:
            shutil.rmtree(self._data.kafka if keep_logs else self._data.path, ignore_errors=True)
            self._data = None
        self._port = self._wanted_port


def _train(archive: Path, cache_dir: Path) -> None:
    """Make a class-data archive: use a throw-away broker a little; its JVM writes the archive at its end."""
    Console(stderr=True).print("Preparing Kafka's classes for faster starts, once for this Java.")
    kafka = EmbeddedKafka(cache_dir=cache_dir, extra_jvm_flags=cds.dump_flags(archive), class_data_archive=False)
    try:
        kafka.start(_TRAINING_TIMEOUT_S)
        cds.exercise(kafka.bootstrap_servers, _TRAINING_TIMEOUT_S)
    finally:
        kafka.stop(_TRAINING_TIMEOUT_S)


# Brokers (or temporary folders) that this process still has to end.
_live: set[EmbeddedKafka] = set()


@atexit.register
def _stop_all() -> None:
    for kafka in list(_live):
        if kafka._owner == os.getpid():  # noqa: SLF001 - a fork does not own its parent's brokers
            with contextlib.suppress(Exception):
                kafka.stop()
