"""TLS, SASL/SCRAM and ACLs on a real Kafka: every role with exactly the rights that `txbridge topics acls` prints."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, insert
from structlog.testing import capture_logs
from txbridge_audit import AuditReport, CouldNotAuditError, run_audit
from txbridge_audit.audit import AuditEngine, follow
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.engines.violations_topic import Alarms
from txbridge_audit.report.entries import Entry
from txbridge_sqlalchemy import Outbox, create_table, transactions

from tests.support import http
from tests.support.command_line import PROGRAM, run_txbridge
from tests.support.harness import COMMIT, ROLLBACK, Bridge, CheckMember, LocalOwner, WorkerProcess, eventually
from tests.support.relays import make_outbox, make_progress
from tests.support.rocketmq_door import Door
from tests.support.secure_kafka import SecureKafka, User, print_acls, printed, secure_kafka
from txbridge import CancelOutcome, LocalTransactionState, Message, TransactionListener, TransactionProducer
from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.outbox_progress import Ownership
from txbridge.doctor.cluster_view import Questions
from txbridge.doctor.run import examine
from txbridge.embedded.jars import JarCache, locked_version
from txbridge.embedded.java import find_java
from txbridge.embedded.ports import free_port
from txbridge.errors import EnvironmentProblemError, TxBridgeError
from txbridge.kafka.acl import Pattern, ResourceKind, Right, Role
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.each_broker import KeptConnections, require_features
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.proven_end import proven_end
from txbridge.operations import Action, Connection, list_pending, resolve
from txbridge.topics.plan import PlanOptions, TopicAction
from txbridge.topics.verify import apply
from txbridge.worker.partition_context import PartitionContext

GROUP = "orders"


class Listener(TransactionListener):
    """Decides as the test says; a check commits."""

    def __init__(self, state: LocalTransactionState) -> None:
        self.state = state
        self.checked: list[bytes] = []

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return self.state

    def check_local_transaction(self, message: Message) -> LocalTransactionState:
        self.checked.append(message.value or b"")
        return LocalTransactionState.COMMIT_MESSAGE


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureKafka]:
    with secure_kafka() as running:
        yield running


@dataclass
class Scene:
    """A namespace on the secured Kafka. The harness itself is a superuser on the other listener."""

    secure: SecureKafka
    bridge: Bridge
    real: str
    group: str = GROUP

    def rights(self, role: str) -> list[Right]:
        return printed(role, self.bridge.namespace, self.group, self.real)

    def user(self, role: str, *also: str) -> User:
        """Make a user with the rights of these roles, and no others."""
        found = self.secure.user(role)
        for one in (role, *also):
            found.grant(*self.rights(one))
        return found

    def environment(self, user: User) -> dict[str, str]:
        return {
            "TXBRIDGE_BOOTSTRAP_SERVERS": self.secure.secure,
            "TXBRIDGE_NAMESPACE": self.bridge.namespace,
            "TXBRIDGE_KAFKA": json.dumps(user.settings),
        }

    def worker(self, user: User, wait: int = 2, **options: object) -> WorkerProcess:
        given = {"TXBRIDGE_KAFKA": json.dumps(user.settings)}
        return self.bridge.worker(wait=wait, environment=given, bootstrap_servers=self.secure.secure, **options)

    def door(self, user: User) -> Door:
        kafka = SimpleNamespace(bootstrap_servers=self.secure.secure, namespace=self.bridge.namespace)
        return Door(kafka, *(f"--kafka={name}={value}" for name, value in user.settings.items()))  # type: ignore[arg-type]

    def producer(self, user: User, state: LocalTransactionState) -> tuple[TransactionProducer, Listener]:
        listener = Listener(state)
        settings = {**user.settings, "bootstrap.servers": self.secure.secure}
        return TransactionProducer(self.group, listener, settings, namespace=self.bridge.namespace), listener

    def cli(self, user: User, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_txbridge(*arguments, env={**os.environ, **self.environment(user)})


@pytest.fixture
def scene(secure: SecureKafka, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Bridge(secure.plain, request.node.name) as bridge:
        real = bridge.create_topic("real")
        with bridge.member(GROUP, {"max.message.bytes": "2000000"}):
            pass
        yield Scene(secure, bridge, real)
        # pytest shows this output when the test has failed.
        for worker in bridge.workers:
            print(worker.log[-6_000:])


@pytest.mark.long
def test_client_worker_operator_doctor_and_audit_with_their_documented_rights(scene: Scene) -> None:
    bridge = scene.bridge
    worker = scene.worker(scene.user("worker"))
    client = scene.user("client")
    producer, listener = scene.producer(client, LocalTransactionState.COMMIT_MESSAGE)
    with producer:
        producer.send_message_in_transaction(Message(scene.real, b"committed", key=b"1")).wait(120)
        bridge.wait_visible(scene.real, [b"committed"])
        listener.state = LocalTransactionState.UNKNOWN
        producer.send_message_in_transaction(Message(scene.real, b"checked")).wait(120)
        bridge.wait_visible(scene.real, [b"checked"])
        assert listener.checked == [b"checked"]
        doctor = scene.cli(
            scene.user("doctor", "worker"), "doctor", "--format", "json", "--group", GROUP, "--real-topic", scene.real
        )
        assert (doctor.returncode, doctor.stderr) == (0, ""), doctor.stdout
    operator = scene.user("operator")
    stuck = bridge.prepare(scene.real, b"stuck", group="somebody")
    listing = scene.cli(operator, "pending", "--format", "json")
    assert (listing.returncode, listing.stderr) == (0, "")
    assert [one["half_offset"] for one in json.loads(listing.stdout)["messages"]] == [stuck.offset]
    where = f"{stuck.partition}:{stuck.offset}"
    done = scene.cli(operator, "resolve", where, "commit", "--reason", "paid", "--operator", "eve")
    assert done.returncode == 0, done.stdout + done.stderr
    bridge.wait_visible(scene.real, [b"stuck"])
    plan = scene.cli(scene.user("admin"), "topics", "plan", "--format", "json")
    assert plan.returncode == 0, plan.stdout + plan.stderr
    auditor = scene.user("audit")
    # Its password, like all others, is in the environment.
    arguments = ("--bootstrap-servers", scene.secure.secure, "--namespace", bridge.namespace)
    audit = scene.cli(auditor, "audit", "--format", "json", *arguments)
    assert audit.returncode == 0, audit.stdout + audit.stderr[-3000:]
    assert json.loads(audit.stdout)["findings"]["by_kind"] == {"BY_HAND": 1}
    worker.stop()
    for secret in (client.password, operator.password, auditor.password):
        assert secret not in worker.log + audit.stdout + audit.stderr + listing.stdout + done.stdout


def test_a_client_cancels_with_its_documented_rights(scene: Scene) -> None:
    bridge = scene.bridge
    scene.worker(scene.user("worker"))
    producer, _ = scene.producer(scene.user("client"), LocalTransactionState.COMMIT_MESSAGE)
    with producer:
        later = Message(scene.real, b"later", delay=600)
        by_id, by_result = (producer.send_message_in_transaction(later) for _ in range(2))
        assert producer.cancel(by_id.transaction_id, "paid", 60).outcome is CancelOutcome.CANCELLED
        assert producer.cancel(by_result, "paid", 60).outcome is CancelOutcome.CANCELLED
    assert [record["TXB_REASON"] for record in bridge.discarded()] == [b"ABANDONED"] * 2


def test_answer_checks_with_its_documented_rights(scene: Scene, tmp_path: Path) -> None:
    """The role has no right to send messages, and needs no more than the documented ones."""
    bridge = scene.bridge
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    create_table(engine)
    prepared = bridge.prepare(scene.real, b"value", group=GROUP)
    with engine.begin() as connection:
        row = {"id": prepared.transaction_id, "state": "committed", "created_at": time.time_ns() // 1_000_000}
        connection.execute(insert(transactions).values(row))
    engine.dispose()
    user = scene.user("answerer")
    environment = {**os.environ, **scene.environment(user), "TXBRIDGE_DATABASE_URL": f"sqlite:///{tmp_path}/app.db"}
    command = [*PROGRAM, "answer-checks", "--group", GROUP]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            bridge.worker(transaction_check_max=30)
            bridge.wait_visible(scene.real, [b"value"], timeout=60)
            process.terminate()
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert user.password not in said
    assert "AUTHORIZATION_FAILED" not in said


def test_a_relay_with_its_documented_rights_and_without_the_one_on_real_topics(scene: Scene, tmp_path: Path) -> None:
    """A row of a missing topic delays no other. Without the right to write to a topic, its row waits and names it."""
    url, missing = f"sqlite:///{tmp_path}/app.db", f"{scene.real}-missing"
    engine = make_outbox(url)
    make_progress(scene.secure.plain, scene.bridge.namespace)

    def blocked(user: User, topic: str, visible: list[bytes]) -> str:
        with engine.begin() as connection:
            Outbox().add(connection, Message(missing, b"held"), Message(scene.real, b"value"))
        environment = {**os.environ, **scene.environment(user), "TXBRIDGE_DATABASE_URL": url}
        with subprocess.Popen([*PROGRAM, "relay"], env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                line = next(line for line in process.stderr if f'"topic": "{topic}"' in line)
                scene.bridge.wait_visible(scene.real, visible)
            finally:
                process.kill()
        return line

    row = next(row for row, right in enumerate(scene.rights("relay")) if right.name == scene.real)
    allowed, (lacking, right) = scene.user("relay"), deprived(scene, "relay", row, "WRITE")
    for user in (allowed, lacking):
        user.grant(replace(right, name=missing))
    assert "does not exist" in blocked(allowed, missing, [b"value"])
    assert_named(blocked(lacking, scene.real, [b"value"]), "WRITE", right)
    engine.dispose()


@pytest.mark.long
def test_kafkas_own_command_takes_the_lines(scene: Scene) -> None:
    """It is among the jars that run Kafka 3.9, and no longer among those of 4."""
    jars = JarCache(version=locked_version("3.9"))
    jars.ensure_jars()
    java = [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", jars.class_path, "kafka.admin.AclCommand"]
    user = scene.secure.user("client")
    more = ("--bootstrap-servers", scene.secure.plain, "--principal", f"User:{user.name}")
    for line in print_acls("client", scene.bridge.namespace, scene.group, "", *more):
        _, *given = shlex.split(line)
        subprocess.run([*java, *given], check=True, capture_output=True)
    scene.bridge.worker()
    producer, _ = scene.producer(user, LocalTransactionState.COMMIT_MESSAGE)
    with producer:
        producer.send_message_in_transaction(Message(scene.real, b"value")).wait(120)
        scene.bridge.wait_visible(scene.real, [b"value"])


@pytest.fixture(scope="module")
def shared(secure: SecureKafka) -> Iterator[Scene]:
    """One namespace for all tests of single rights."""
    yield from written_scene(secure, "denied")


def written_scene(secure: SecureKafka, namespace: str) -> Iterator[Scene]:
    with Bridge(secure.plain, namespace, partitions=1) as bridge:
        real = bridge.create_topic("real", 1)
        with bridge.member(GROUP, {"max.message.bytes": "2000000"}) as member:
            write_to_every_topic(bridge, real, member)
            yield Scene(secure, bridge, real)


def write_to_every_topic(bridge: Bridge, real: str, member: CheckMember) -> None:
    """Write a record to each topic. An empty topic is not read, so a missing right would not show."""
    with bridge.local_owner():
        bridge.produce(bridge.names.half, value=b"not ours", partition=0)
        # This message is discarded and can be resumed for a week. So OP, which names the next one, is read from there
        # on.
        asked = bridge.prepare(real, b"asked", group=GROUP, partition=0)
        bridge.decide(bridge.prepare(real, b"value", group=GROUP, partition=0), COMMIT, group=GROUP)
        bridge.wait_visible(real, [b"value"])
        eventually(lambda: member.checks(asked) and bridge.discarded())


def operations_of(role: str, *first: str) -> list[object]:
    """Every single right of a role, as the number of its line and the operation.

    The rights of one operation differ only in the topic, so only the first of them is not a long test.
    """
    seen: set[str] = set()
    found: list[object] = []
    for number, right in enumerate(printed(role, "ns", GROUP, "real")):
        for operation in right.operations:
            found.append(pytest.param(*first, number, operation, marks=pytest.mark.long if operation in seen else ()))
            seen.add(operation)
    return found


def name_of(parameter: object) -> str:
    return str(parameter)


def deprived(scene: Scene, role: str, row: int, operation: str) -> tuple[User, Right]:
    """A user without one right of the role, and that right. DESCRIBE, which READ and WRITE include, is kept."""
    user, right = scene.user(role), scene.rights(role)[row]
    user.revoke(right, operation)
    if operation in {"READ", "WRITE"}:
        user.grant(replace(right, operations=("DESCRIBE",)))
    return user, right


def assert_named(text: str, operation: str, right: Right) -> None:
    """Expect a line that names the operation and the resource."""
    name = right.name.rstrip(".")
    assert any(operation in line and name in line for line in text.splitlines()), f"{right}: {text[-3_000:]}"


@pytest.mark.parametrize(("row", "operation"), operations_of("worker"), ids=name_of)
def test_each_right_that_a_worker_lacks_is_named(shared: Scene, row: int, operation: str) -> None:
    bridge = shared.bridge
    user, right = deprived(shared, "worker", row, operation)
    names = bridge.names
    if right.name in {names.worker_group, names.half, names.end, names.op, names.offset, names.discard}:
        # Rights without which the worker does not start.
        worker = shared.worker(user, wait=0)
        try:
            eventually(lambda: operation in worker.log and right.name in worker.log, 20)
        finally:
            worker.stop()
            assert_named(worker.log, operation, right)
        return
    kafka = {**user.settings, "bootstrap.servers": shared.secure.secure}
    with capture_logs() as logs, owner(bridge, kafka):
        # One record of each kind that a worker writes: delivered, malformed, check.
        bridge.decide(bridge.prepare(shared.real, b"value", group=GROUP, partition=0), COMMIT, group=GROUP)
        bridge.produce(bridge.names.half, value=b"not ours", partition=0)
        asked = bridge.prepare(shared.real, b"undecided", group=GROUP, partition=0)

        def lines() -> str:
            return "\n".join(json.dumps(entry, default=str) for entry in logs)

        name = right.name.rstrip(".")
        try:
            eventually(lambda: any(operation in one and name in one for one in lines().splitlines()), 15)
        finally:
            assert_named(lines(), operation, right)
    bridge.decide(asked, ROLLBACK, group=GROUP)


@contextmanager
def owner(bridge: Bridge, kafka: dict[str, str]) -> Iterator[None]:
    """Run the owner of partition 0 as this user, whatever its result."""

    def connect() -> AdminClient:
        return AdminClient({**kafka, "logger": logging.getLogger("txbridge.librdkafka")})

    policy = CheckPolicy(transaction_timeout=500, transaction_check_interval=500)
    brokers = KeptConnections(kafka)
    context = PartitionContext(
        kafka=kafka,
        cluster=KafkaCluster(connect),
        membership=GroupMembership(connect),
        brokers=brokers,
        ends=LogEnds(brokers),
        names=bridge.names,
        policy=policy,
        commit_timeout_ms=10_000,
        payload_memory=1024 * 1024,
        check_rate=1_000,
    )
    running = LocalOwner(context, 0, lambda _: True)
    try:
        yield
    finally:
        running.stop()


def test_a_worker_asks_each_broker_alone(scene: Scene) -> None:
    kafka = {"bootstrap.servers": scene.secure.secure, **scene.user("worker").settings}
    scene.bridge.prepare(scene.real, b"one", partition=1)
    with closing(KeptConnections(kafka)) as brokers:
        ends = [proven_end(brokers, scene.bridge.names.half, partition) for partition in (0, 1)]
        assert ends == [0, 1]
        assert proven_end(brokers, scene.bridge.names.end, 0) == 0
        host, port = scene.secure.secure.split(":")
        versions = brokers.versions_of({1: (host, int(port)), 2: ("127.0.0.1", free_port())})
    assert versions.keys() == {1}
    require_features(versions)


@pytest.mark.parametrize(("row", "operation"), operations_of("client"), ids=name_of)
def test_each_right_that_a_client_lacks_is_named(
    shared: Scene, row: int, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Nobody else reads the group's check topic. Only a client with a partition learns that it may not read it.
    alone = Scene(shared.secure, shared.bridge, shared.real, group=f"alone-{row}-{operation.lower()}")
    with shared.bridge.member(alone.group, {"max.message.bytes": "2000000"}):
        pass
    user, right = deprived(alone, "client", row, operation)
    producer, _ = alone.producer(user, LocalTransactionState.UNKNOWN)
    text = []
    try:
        with caplog.at_level(logging.WARNING, "txbridge.client"), producer:
            try:
                producer.send_message_in_transaction(Message(shared.real, b"value")).wait(120)
            except TxBridgeError as error:
                text.append(str(error).replace("\n", " "))
            if "READ" in operation and not text:
                eventually(lambda: operation in caplog.text and right.name in caplog.text, 20, caplog.text)
                if right.kind is ResourceKind.TOPIC:
                    with pytest.raises(EnvironmentProblemError, match=f"READ on topic {right.name}"):
                        producer.cancel("0" * 32, "nobody may read what has become of it", timeout=20)
    except TxBridgeError as error:
        text.append(str(error).replace("\n", " "))
    assert_named("\n".join([*text, caplog.text]), operation, right)


@pytest.mark.parametrize(("row", "operation"), operations_of("operator"), ids=name_of)
def test_each_right_that_an_operator_lacks_is_named(shared: Scene, row: int, operation: str) -> None:
    user, right = deprived(shared, "operator", row, operation)
    message = shared.bridge.prepare(shared.real, b"value", group=GROUP, partition=0)
    settings = WorkerSettings(
        bootstrap_servers=shared.secure.secure, namespace=shared.bridge.namespace, kafka=user.settings
    )
    with pytest.raises(EnvironmentProblemError) as caught:  # noqa: PT012  whichever of the three finds out
        connection = Connection.open(settings)
        list_pending(connection)
        where = f"0:{message.offset}"
        resolve(connection, where, Action.ROLLBACK, reason="test", operator="eve", timeout_s=0)
    assert_named(str(caught.value).replace("\n", " "), operation, right)


@pytest.mark.parametrize(
    ("role", "row", "operation"), [*operations_of("doctor", "doctor"), *operations_of("relay", "relay")], ids=name_of
)
def test_each_right_that_a_doctor_or_relay_lacks_is_named(
    shared: Scene, laid_out: Bridge, role: str, row: int, operation: str
) -> None:
    # Without pending messages doctor knows groups by their topics only.
    scene = Scene(shared.secure, laid_out, shared.real)
    user, right = deprived(scene, role, row, operation)
    settings = WorkerSettings(bootstrap_servers=shared.secure.secure, namespace=laid_out.namespace, kafka=user.settings)
    report = examine(settings, Questions(Role(role), real_topics=(shared.real,), relay=True))
    text = "\n".join(one.text for one in report.findings)
    assert_named(text, operation, right)
    assert not report.complete or not report.healthy


def test_the_right_to_create_topics_that_a_door_lacks_is_named(shared: Scene) -> None:
    user = shared.user("doctor", "client")
    settings = WorkerSettings(
        bootstrap_servers=shared.secure.secure, namespace=shared.bridge.namespace, kafka=user.settings
    )
    questions = Questions(Role.CLIENT, (GROUP,), door=True, creates_topics=True)

    def texts() -> str:
        return "\n".join(one.text for one in examine(settings, questions).findings)

    lacking = "(--auto-create-topics): missing right CREATE on topic"
    assert lacking in texts()
    user.grant(Right(ResourceKind.TOPIC, "txbridge-", Pattern.PREFIXED, ("CREATE",)))
    assert lacking not in texts()


@pytest.fixture(scope="module")
def laid_out(secure: SecureKafka) -> Iterator[Bridge]:
    """A namespace with all its topics, those of checks and relays included."""
    with Bridge(secure.plain, "laid out", partitions=1) as bridge:
        for options in (PlanOptions(groups=(GROUP,)), PlanOptions(relay=True)):
            apply(KafkaCluster.connect({"bootstrap.servers": secure.plain}), bridge.names, options)
        yield bridge


@pytest.mark.parametrize(("row", "operation"), operations_of("admin"), ids=name_of)
def test_each_right_that_an_admin_lacks_is_named(
    secure: SecureKafka, laid_out: Bridge, row: int, operation: str
) -> None:
    # A test of CREATE needs a namespace without topics.
    bridge = Bridge(secure.plain, "to be laid out", partitions=1) if operation == "CREATE" else laid_out
    scene = Scene(secure, bridge, "real")
    user, right = deprived(scene, "admin", row, operation)
    if operation == "DESCRIBE_CONFIGS":
        # Kafka grants it together with ALTER_CONFIGS.
        user.revoke(right, "ALTER_CONFIGS")
    topic = f"{right.name}{GROUP}" if right.pattern is Pattern.PREFIXED else right.name
    if operation == "ALTER_CONFIGS":
        bridge.alter_topic(topic, message_timestamp_type="CreateTime")
    try:
        cluster = KafkaCluster.connect({**user.settings, "bootstrap.servers": secure.secure})
        relay = topic == bridge.names.outbox
        plans = apply(cluster, bridge.names, PlanOptions(1, groups=() if relay else (GROUP,), relay=relay))
    finally:
        if operation == "ALTER_CONFIGS":
            bridge.alter_topic(topic, message_timestamp_type="LogAppendTime")
        if bridge is not laid_out:
            bridge.close()
    [refused] = [plan for plan in plans if plan.action is TopicAction.REFUSED]
    assert refused.topic == topic
    assert_named("\n".join(refused.reasons), operation, right)


@pytest.fixture(scope="module")
def audited(secure: SecureKafka) -> Iterator[Scene]:
    """A namespace with a record in every topic."""
    for scene in written_scene(secure, "audited"):
        bridge = scene.bridge
        apply(KafkaCluster.connect({"bootstrap.servers": secure.plain}), bridge.names, PlanOptions(relay=True))
        taken = Ownership("0" * 32, 0).encode()
        bridge.produce(bridge.names.outbox, key=b"0" * 16, value=taken, headers=[("TXB_V", b"1")], partition=0)
        yield scene


def _audited_by(user: User, scene: Scene, spark: SparkSession | None = None) -> AuditReport:
    namespace, engine = scene.bridge.namespace, None if spark else AuditEngine.LOCAL
    return run_audit(scene.secure.secure, namespace=namespace, kafka_options=user.settings, spark=spark, engine=engine)


@pytest.mark.parametrize(("row", "operation"), operations_of("audit"), ids=name_of)
def test_each_right_that_an_audit_lacks_is_named(audited: Scene, row: int, operation: str) -> None:
    user, right = deprived(audited, "audit", row, operation)
    if operation == "DESCRIBE_CONFIGS":
        found = _audited_by(user, audited)
        assert found.findings.by_kind["RIGHT_MISSING"] == 1
        assert_named("\n".join(entry.says for entry in found.findings.listed), operation, right)
        assert found.strict_exit_code == 1
        return
    with pytest.raises(CouldNotAuditError) as caught:
        _audited_by(user, audited)
    assert_named(str(caught.value), operation, right)
    assert user.password not in str(caught.value)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_right_that_spark_lacks_is_named(audited: Scene, spark: SparkSession) -> None:
    """It comes out of a task's stack trace, whatever the topic."""
    user, right = deprived(audited, "audit", 0, "READ")
    with pytest.raises(CouldNotAuditError) as caught:
        _audited_by(user, audited, spark=spark)
    assert_named(str(caught.value), "READ", right)
    assert user.password not in str(caught.value)


def _alarm(scene: Scene, user: User) -> None:
    """Act as a following audit: start, write a violation, and start again."""
    settings = kafka_settings(scene.secure.secure, user.settings)
    entry = Entry("LOST", "it is not there", "0123ABCD", GROUP, scene.real)
    for step in (1, 2):
        alarms = Alarms(settings, AuditedCluster(settings), scene.bridge.names.violations, "ledger")
        alarms.recall({})
        alarms.send(step, [entry])


@pytest.fixture(scope="module")
def followed(audited: Scene) -> Scene:
    topic = audited.bridge.names.violations
    audited.bridge.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    audited.bridge.produce(topic, value=b"an older audit's", partition=0)
    return audited


@pytest.mark.parametrize(("row", "operation"), operations_of("follower"), ids=name_of)
def test_each_right_that_an_audit_lacks_for_its_alarms_is_named(followed: Scene, row: int, operation: str) -> None:
    user, right = deprived(followed, "follower", row, operation)
    with pytest.raises(CouldNotAuditError) as caught:
        _alarm(followed, user)
    assert_named(str(caught.value), operation, right)


def test_an_audit_follows_with_its_documented_rights(followed: Scene, tmp_path: Path) -> None:
    bridge = followed.bridge
    [delivered] = [one for one in bridge.read(followed.real) if one.value() == b"value"]
    again = {"headers": delivered.headers(), "timestamp": delivered.timestamp()[1]}
    bridge.produce(followed.real, value=b"value", partition=0, **again)
    stop = threading.Event()
    stop.set()  # one step
    report = follow(
        followed.secure.secure,
        str(tmp_path / "ledger"),
        stop=stop,
        violations_topic=bridge.names.violations,
        namespace=bridge.namespace,
        kafka_options=followed.user("audit", "follower").settings,
    )
    assert {kind: count for kind, count in report.violations.by_kind.items() if count} == {"DUPLICATED": 1}
    [raised] = [one for one in bridge.read(bridge.names.violations) if b"DUPLICATED" in (one.value() or b"")]
    assert json.loads(raised.value() or b"")["real_topic"] == followed.real


def test_an_audit_says_which_real_topic_it_may_not_even_see(audited: Scene) -> None:
    user = audited.secure.user("audit")
    user.grant(*(right for right in audited.rights("audit") if right.name != audited.real))
    # A hidden topic must not count as missing, because then its messages would be unverifiable.
    with pytest.raises(CouldNotAuditError, match=f"messages go to {audited.real}, which the audit's user may not see"):
        _audited_by(user, audited)


def test_a_forged_end_without_the_id_is_refused_and_no_log_has_a_whole_id(scene: Scene) -> None:
    bridge, names = scene.bridge, scene.bridge.names
    worker = scene.worker(scene.user("worker"))
    victim = bridge.prepare(scene.real, b"not yours to decide", partition=0, group=GROUP)
    # A user with every right of a client: Kafka cannot tell the groups apart inside END.
    stranger = scene.user("client")
    forged = secrets.token_hex(16).upper()
    producer = Producer({**stranger.settings, "bootstrap.servers": scene.secure.secure})
    headers = [("TXB_V", b"1"), ("PGROUP", GROUP.encode()), ("SOURCE", b"client")]
    for transaction_id in (forged, victim.transaction_id[:8] + forged[8:]):
        value = f"{victim.offset},{transaction_id},{COMMIT}".encode()
        producer.produce(names.end, value=value, headers=headers, partition=0)
    assert producer.flush(120) == 0
    eventually(lambda: sum(one["count"] for one in worker.events("end_refused")) == 2)
    assert {one["reason"] for one in worker.events("end_refused")} == {"wrong_transaction_id"}
    assert bridge.visible(scene.real) == {}
    # Everybody who knows the id may decide. Nothing else protects a transaction here.
    value = f"{victim.offset},{victim.transaction_id},{COMMIT}".encode()
    producer.produce(names.end, value=value, headers=headers, partition=0)
    producer.flush(120)
    bridge.wait_visible(scene.real, [b"not yours to decide"])
    held = bridge.prepare(f"{bridge.namespace}.missing", b"held", group=GROUP)
    bridge.decide(held, COMMIT, group=GROUP)
    worker.wait_logged(held.transaction_id[:8])
    worker.stop()
    for one in (forged, victim.transaction_id, held.transaction_id):
        assert one[:13] not in worker.log


def pages(port: int, *more: str) -> str:
    """All pages of a worker's port."""
    paths = ("/metrics", "/livez", "/readyz", "/status", "/status.json", "/nothing", *more)
    return "\n".join(http.ask(f"http://127.0.0.1:{port}{path}", 60).text for path in paths)


def test_a_worker_shows_its_password_in_no_log_metric_or_page(scene: Scene) -> None:
    bridge, port = scene.bridge, free_port()
    user = scene.user("worker")
    options = {"metrics_port": port, "status_page": "read", "log_level": "debug"}
    worker = scene.worker(user, **options)
    bridge.decide(bridge.prepare(scene.real, b"delivered", group=GROUP), COMMIT, group=GROUP)
    held = bridge.prepare(f"{bridge.namespace}.missing", group=GROUP)
    bridge.decide(held, COMMIT, group=GROUP)
    worker.wait_logged('"held"')
    eventually(lambda: '"state": "held"' in http.ask(f"http://127.0.0.1:{port}/open.json", 60).text)
    shown = pages(port, "/open.json")
    assert "txbridge_messages_delivered_total" in shown
    started = Path(f"/proc/{worker.pid}/cmdline").read_text()
    worker.stop()
    # A worker with a wrong password logs more errors.
    wrong = replace(user, settings={**user.settings, "sasl.password": "a-secret-nobody-may-see"})
    refused = scene.worker(wrong, wait=0, **options)
    refused.wait_logged("kafka_unreachable")
    shown += pages(port)
    refused.stop()
    for secret in (user.password, wrong.password):
        assert secret not in shown + started
        assert secret not in worker.log + refused.log


@pytest.mark.long
def test_a_failed_audit_and_its_spark_log_show_no_password(audited: Scene) -> None:
    user, _ = deprived(audited, "audit", 0, "READ")
    arguments = ("--bootstrap-servers", audited.secure.secure, "--namespace", audited.bridge.namespace)
    done = audited.cli(user, "audit", "--engine", "spark", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    log = re.search(r"see\s+(\S+spark\.log)", done.stderr)
    assert log is not None, done.stderr
    text = Path(log[1]).read_text()
    shutil.rmtree(Path(log[1]).parent)
    assert "TopicAuthorizationException" in text
    assert user.password not in text + done.stdout + done.stderr
