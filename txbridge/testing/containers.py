"""Kafka and the worker in containers, in the style of testcontainers' own modules (extra `testing`)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import Any, Self

from txbridge.errors import missing_extra

if error := missing_extra(__name__, "testing", "testcontainers"):
    raise error

import docker.errors
from docker.constants import DEFAULT_UNIX_SOCKET
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient, get_docker_host
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HttpWaitStrategy, LogMessageWaitStrategy

from txbridge.errors import EnvironmentProblemError
from txbridge.testing.backends import SERVING_TIMEOUT_S, ProcessBackend, RunningWorker, environment

KAFKA_IMAGE = "apache/kafka:4.3.1"
#: The image that this repository builds (`make image`).
WORKER_IMAGE = f"txbridge/worker:{version('txbridge')}"

#: Seconds. Kafka's image starts in 3 s, several times that on a busy machine; pulling it does not count.
_KAFKA_TIMEOUT_S = 60
#: Seconds from SIGTERM to SIGKILL: the worker's own limit is 20 s.
_STOP_TIMEOUT_S = 25
#: Seconds. Docker's own client waits for 60 s; a healthy daemon answers in milliseconds.
_PING_TIMEOUT_S = 10.0
_CLOCK_FILE = "/tmp/txbridge-clock"  # noqa: S108  in a container of ours, where nobody else is


class ApacheKafkaContainer(DockerContainer):
    """One node of Apache Kafka, broker and controller, configured for transactions. It keeps no data after its end.

    testcontainers' own KafkaContainer runs Confluent's image.

    Example:
        .. code-block:: python

            with ApacheKafkaContainer() as kafka:
                producer = Producer({"bootstrap.servers": kafka.get_bootstrap_server()})

    """

    #: Port for containers of the same network, which use its first network alias.
    INTERNAL_PORT = 19092
    _SCRIPT = "/tmp/txbridge-start.sh"  # noqa: S108  in the container

    def __init__(self, image: str = KAFKA_IMAGE, port: int = 9092, **kwargs: Any) -> None:
        super().__init__(image, **kwargs)
        self.port = port
        self.alias = "localhost"
        self.with_exposed_ports(port)
        self.with_envs(
            KAFKA_NODE_ID="1",
            KAFKA_PROCESS_ROLES="broker,controller",
            KAFKA_LISTENERS=f"PLAINTEXT://:{port},INTERNAL://:{self.INTERNAL_PORT},CONTROLLER://:9093",
            KAFKA_LISTENER_SECURITY_PROTOCOL_MAP="PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            KAFKA_INTER_BROKER_LISTENER_NAME="INTERNAL",
            KAFKA_CONTROLLER_LISTENER_NAMES="CONTROLLER",
            KAFKA_CONTROLLER_QUORUM_VOTERS="1@localhost:9093",
            KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="1",
            KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS="1",
            KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR="1",
            KAFKA_TRANSACTION_STATE_LOG_MIN_ISR="1",
            KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS="1",
            # A consumer group of a test need not wait for more members, and should notice a dead one soon.
            KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS="0",
            KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS="1000",
            KAFKA_AUTO_CREATE_TOPICS_ENABLE="false",
        )
        # Kafka's advertised address is known only when Docker has chosen the port.
        script = self._SCRIPT
        self.with_command(["sh", "-c", f"while [ ! -f {script} ]; do sleep 0.05; done; exec sh {script}"])

    def get_bootstrap_server(self) -> str:
        """The address for clients on this machine."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def get_internal_bootstrap_server(self) -> str:
        """The address for containers of its network."""
        return f"{self.alias}:{self.INTERNAL_PORT}"

    def with_network_aliases(self, *aliases: str) -> Self:
        self.alias = aliases[0]
        return super().with_network_aliases(*aliases)

    def start(self, timeout: int = _KAFKA_TIMEOUT_S) -> Self:
        """Start it and wait until it serves, at most `timeout` seconds. Raises TimeoutError."""
        super().start()
        listeners = f"PLAINTEXT://{self.get_bootstrap_server()},INTERNAL://{self.get_internal_bootstrap_server()}"
        script = f"export KAFKA_ADVERTISED_LISTENERS={listeners}\nexec /etc/kafka/docker/run\n"
        self.copy_into_container(script.encode(), self._SCRIPT)
        ready = LogMessageWaitStrategy(r"Kafka Server started").with_startup_timeout(timeout)
        ready.wait_until_ready(self)
        return self


class WorkerContainer(DockerContainer):
    """A worker. The internal topics must exist already (`txbridge topics apply`). `start` returns when it is ready.

    Options are environment variables, as for any worker of the image (docs/configuration.md).

    Example:
        .. code-block:: python

            with Network() as network:
                with ApacheKafkaContainer().with_network(network).with_network_aliases("kafka") as kafka:
                    ...  # the topics
                    with WorkerContainer(kafka.get_internal_bootstrap_server()).with_network(network) as worker:
                        print(worker.get_url("/metrics"))

    """

    def __init__(self, bootstrap_servers: str, image: str = WORKER_IMAGE, port: int = 9464, **kwargs: Any) -> None:
        super().__init__(image, **kwargs)
        self.port = port
        self.with_exposed_ports(port)
        self.with_option("bootstrap_servers", bootstrap_servers)
        self.with_option("metrics_port", str(port))
        self.waiting_for(HttpWaitStrategy(port, "/readyz").with_startup_timeout(int(SERVING_TIMEOUT_S)))

    def with_option(self, name: str, value: str) -> Self:
        """Set an option by its name in docs/configuration.md."""
        return self.with_env(f"TXBRIDGE_{name.upper()}", value)

    def get_url(self, path: str = "/readyz") -> str:
        """The address of a page of the worker (docs/metrics.md), for clients on this machine."""
        return f"http://{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}{path}"


class ContainerizedWorker(RunningWorker):
    """A worker of a sandbox, in a container."""

    def __init__(self, container: DockerContainer) -> None:
        self._container = container
        self._returncode: int | None = None
        self._last_log = ""
        container.start()

    @property
    def log(self) -> str:
        if self._returncode is None:
            self._last_log = b"".join(self._container.get_logs()).decode(errors="replace")
        return self._last_log

    @property
    def returncode(self) -> int | None:
        if self._returncode is None:
            wrapped = self._container.get_wrapped_container()
            wrapped.reload()
            if wrapped.status == "exited":
                self._remove_container(int(wrapped.attrs["State"]["ExitCode"]))
        return self._returncode

    def kill(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill()
        self._remove_container(int(wrapped.wait()["StatusCode"]))

    def stop(self) -> int:
        if self.returncode is None:
            wrapped = self._container.get_wrapped_container()
            wrapped.stop(timeout=_STOP_TIMEOUT_S)
            self._remove_container(int(wrapped.wait()["StatusCode"]))
        assert self._returncode is not None
        return self._returncode

    def shift_clock(self, milliseconds: int) -> None:
        # In one step: the worker must not read half a number.
        new = f"{_CLOCK_FILE}.new"
        done = self._container.exec(["sh", "-c", f"echo {milliseconds} > {new} && mv {new} {_CLOCK_FILE}"])
        assert done.exit_code == 0, done.output

    def _remove_container(self, returncode: int) -> None:
        """Keep the log of a worker that has ended, and remove its container."""
        self._last_log = self.log
        self._returncode = returncode
        self._container.stop()


class ContainerBackend(ProcessBackend):
    """Kafka in a container. Workers are processes of the installed txbridge, or containers if an image is named.

    Args:
        worker_image: for example WORKER_IMAGE; "" runs workers as processes.
        kafka_image: the one of Apache Kafka, or one with the same contract.

    """

    def __init__(self, worker_image: str = "", kafka_image: str = KAFKA_IMAGE) -> None:
        super().__init__("")
        self._worker_image = worker_image
        self._kafka_image = kafka_image
        self._stack = ExitStack()
        self._network: Network | None = None
        self._kafka: ApacheKafkaContainer | None = None

    @property
    def bootstrap_servers(self) -> str:
        assert self._kafka is not None, "start the backend first"
        return self._kafka.get_bootstrap_server()

    def start(self) -> Self:
        if (problem := docker_problem()) is not None:
            raise EnvironmentProblemError(
                f"{problem}. Start Docker, or use the embedded Kafka (--txbridge-backend=embedded)"
            )
        for image in filter(None, (self._kafka_image, self._worker_image)):
            _require_image(image)
        if not testcontainers_config.ryuk_disabled:
            _require_image(testcontainers_config.ryuk_image)
        with ExitStack() as stack:
            self._network = stack.enter_context(Network())
            kafka = ApacheKafkaContainer(self._kafka_image).with_network(self._network).with_network_aliases("kafka")
            self._kafka = stack.enter_context(kafka)
            super().start()
            stack.callback(super().stop)
            self._stack = stack.pop_all()
        return self

    def stop(self) -> None:
        self._stack.close()

    def start_worker(self, options: Mapping[str, str]) -> RunningWorker:
        if not self._worker_image:
            return super().start_worker(options)
        assert self._kafka is not None
        assert self._network is not None
        servers = self._kafka.get_internal_bootstrap_server()
        # Unlike the image's own entry point, this worker has a clock that can be shifted.
        container = DockerContainer(self._worker_image, entrypoint=["python", "-m", "txbridge.testing.worker"])
        container.with_command([_CLOCK_FILE]).with_network(self._network)
        container.with_envs(**environment({**options, "bootstrap_servers": servers}))
        return ContainerizedWorker(container)


def docker_problem() -> str | None:
    """The reason why containers cannot run here, or None if they can."""
    host = get_docker_host() or DEFAULT_UNIX_SOCKET
    if "unix://" in host and (problem := _socket_problem(host.partition("unix://")[2])):
        return f"Docker does not answer: {problem}"
    try:
        with closing(DockerClient().client) as client:
            client.ping()
    except docker.errors.DockerException as error:
        return f"Docker does not answer: {error}"
    return None


def _socket_problem(path: str) -> str | None:
    """The reason why Docker does not answer there, or None. Its own client would leave a socket open in this case."""
    try:
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.settimeout(_PING_TIMEOUT_S)
            client.connect(path)
            client.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            answer = client.recv(1_000).partition(b"\r\n")[0].decode(errors="replace")
    except OSError as error:
        return f"{error.strerror or error} ({path})"
    return None if " 200 " in answer else f"{answer or 'no answer'} ({path})"


def _require_image(image: str) -> None:
    """Pull a missing image. testcontainers would do that, too, but its error names no remedy."""
    with closing(DockerClient().client) as client:
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            try:
                client.images.pull(image)
            except docker.errors.DockerException as error:
                raise EnvironmentProblemError(
                    f"the image {image} is not here and could not be pulled ({error}): {_other_way(image)}, or use the "
                    f"embedded Kafka (--txbridge-backend=embedded)"
                ) from None


def _other_way(image: str) -> str:
    if image == WORKER_IMAGE:
        return "build it with `make image` in txbridge's repository"
    if image == testcontainers_config.ryuk_image:
        return (
            "set TESTCONTAINERS_RYUK_DISABLED=true to run without it (it removes containers of tests that were killed)"
        )
    return "load it by hand"
