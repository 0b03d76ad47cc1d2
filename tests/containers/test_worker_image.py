"""The images: their content, their service and their end."""

from __future__ import annotations

import json
import subprocess
import time

import docker
import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.support import http
from tests.support.listeners import Answers
from txbridge import LocalTransactionState, Message
from txbridge.core.names import Names
from txbridge.kafka.admin import KafkaCluster
from txbridge.testing import ProcessBackend, Sandbox, TransactionState
from txbridge.testing.containers import WORKER_IMAGE, ApacheKafkaContainer, ContainerBackend, WorkerContainer
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import apply

#: Megabytes beyond python:3.11-slim, as docs/compose.md has them. Later versions of packages may be an eighth larger.
SIZES = {"worker": 55, "answer-checks": 61, "rocketmq": 75}
#: What one command needs and another does not.
PACKAGES = {"faust": {"worker"}, "sqlalchemy": {"answer-checks"}, "psycopg": {"answer-checks"}, "grpc": {"rocketmq"}}
#: What no image has.
TOOLS = {"pip", "pytest", "pyspark"}


def image_of(command: str) -> str:
    return WORKER_IMAGE.replace("worker", command)


@pytest.mark.parametrize("command", SIZES)
def test_an_image_is_small_and_runs_as_nobody_in_particular(command: str):
    image = docker.from_env().images.get(image_of(command))
    assert image.attrs["Config"]["User"] == "10001:10001"
    base = docker.from_env().images.get("python:3.11-slim")
    assert image.attrs["Size"] - base.attrs["Size"] < SIZES[command] * 1_125_000


@pytest.mark.parametrize("command", SIZES)
def test_an_image_has_the_packages_of_its_command_and_no_tools(command: str):
    names = sorted([*PACKAGES, *TOOLS])
    program = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    found = run("--entrypoint", "python", image_of(command), "-c", program).stdout
    assert found.strip() == repr(sorted(name for name, commands in PACKAGES.items() if command in commands))


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("worker", "TXBRIDGE_BOOTSTRAP_SERVERS"),
        ("answer-checks", "--group is missing"),
        ("rocketmq", "TXBRIDGE_BOOTSTRAP_SERVERS"),
    ],
)
def test_a_missing_option_is_one_line_and_not_a_trace(command: str, missing: str):
    done = run(image_of(command))
    assert done.returncode == 2
    assert missing in done.stderr
    assert len(done.stderr.splitlines()) == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a container without a network."""
    return subprocess.run(
        ["docker", "run", "--rm", "--network", "none", *arguments], capture_output=True, text=True, check=False
    )


def test_the_container_of_a_worker_is_started_when_it_is_ready_and_healthy_soon():
    with Network() as network, ApacheKafkaContainer().with_network(network).with_network_aliases("kafka") as kafka:
        cluster = KafkaCluster.connect({"bootstrap.servers": kafka.get_bootstrap_server()})
        apply(cluster, Names("images"), PlanOptions(partitions=2, replication_factor=1))
        worker = WorkerContainer(kafka.get_internal_bootstrap_server()).with_network(network)
        with worker.with_option("namespace", "images"):
            ready = http.ask(worker.get_url("/readyz"), 5)
            assert (ready.status, json.loads(ready.body)) == (200, {"ok": True, "reasons": []})
            assert b"txbridge_ready 1.0" in http.ask(worker.get_url("/metrics"), 5).body
            wrapped = worker.get_wrapped_container()
            deadline = time.monotonic() + 60  # the check runs every 5 s, and its first may come too early
            while wrapped.attrs["State"]["Health"]["Status"] != "healthy":
                assert time.monotonic() < deadline, wrapped.attrs["State"]["Health"]
                time.sleep(0.5)
                wrapped.reload()
            wrapped.stop(timeout=25)
            assert wrapped.wait()["StatusCode"] == 0
            lines = [json.loads(line) for line in wrapped.logs().decode().splitlines()]
            assert "partition_taken_over" in {line["event"] for line in lines}


def test_a_sandbox_of_containers_does_all_that_one_of_processes_does(backend: ContainerBackend):
    with Sandbox(backend) as sandbox:
        topic = sandbox.create_topic("containers.all")
        killed = sandbox.start_worker()
        producer = sandbox.start_producer(Answers(None))
        undecided = producer.send_message_in_transaction(Message(topic, b"checked"), LocalTransactionState.UNKNOWN)
        assert sandbox.let_checks_be_due() == 1
        assert sandbox.wait_fate(undecided) is TransactionState.COMMITTED

        sandbox.kill_worker()
        assert killed.returncode == 137
        assert killed.events("partition_taken_over")
        decided = producer.send_message_in_transaction(Message(topic, b"decided"), LocalTransactionState.COMMIT_MESSAGE)
        successor = sandbox.start_worker()
        assert sandbox.wait_fate(decided) is TransactionState.COMMITTED
        assert sorted(message.value() for message in sandbox.read_visible(topic)) == [b"checked", b"decided"]
    assert successor.returncode == 0


def test_workers_as_processes_serve_a_kafka_in_a_container(backend: ContainerBackend):
    with ProcessBackend(backend.bootstrap_servers) as processes, Sandbox(processes) as sandbox:
        topic = sandbox.create_topic("containers.processes")
        sandbox.start_worker()
        producer = sandbox.start_producer(Answers(None))
        sent = producer.send_message_in_transaction(Message(topic, b"x"), LocalTransactionState.COMMIT_MESSAGE)
        assert sandbox.wait_fate(sent) is TransactionState.COMMITTED


def test_nothing_is_left_behind(backend: ContainerBackend):
    with Sandbox(backend) as sandbox:
        sandbox.start_worker()
        running = docker.from_env().containers.list(all=True, filters={"ancestor": WORKER_IMAGE})
        assert len(running) == 1
    assert docker.from_env().containers.list(all=True, filters={"ancestor": WORKER_IMAGE}) == []


def test_the_image_has_a_worker_that_ends_when_it_is_told_to_without_kafka():
    """The worker logs that it waits for Kafka, and ends at once on SIGTERM although it is process 1."""
    container = DockerContainer(WORKER_IMAGE).with_env("TXBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    with container:
        wrapped = container.get_wrapped_container()
        deadline = time.monotonic() + 60
        while b"kafka_unreachable" not in wrapped.logs():
            assert time.monotonic() < deadline, wrapped.logs()
            time.sleep(0.2)
        started = time.monotonic()
        wrapped.stop(timeout=20)
        assert time.monotonic() - started < 15
