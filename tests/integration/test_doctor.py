"""`txbridge doctor` on a real Kafka: each finding, after the fault that it reports was caused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from txbridge_sqlalchemy import Outbox
from typer.testing import CliRunner

from tests.support.command_line import run_txbridge
from tests.support.harness import COMMIT, FAST, Bridge, eventually, quiet
from tests.support.listeners import Commits
from tests.support.module_fixtures import module_kafka
from tests.support.relays import make_outbox
from txbridge import Message, TransactionProducer
from txbridge.cli.app import app
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.doctor import run as doctor_run
from txbridge.doctor.cluster_view import Questions
from txbridge.doctor.finding import Level
from txbridge.doctor.run import examine
from txbridge.kafka.acl import Role
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import apply

DAY = 86_400_000
EVERY = {
    "connection",
    "versions",
    "topics",
    "retention",
    "replication",
    "limits",
    "rights",
    "workers",
    "producers",
    "backlog",
    "transactions",
}


#: A cluster with an authorizer that allows everything without an ACL.
kafka = module_kafka(
    config={
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "transaction.max.timeout.ms": "60000",
        "compression.type": "zstd",
    }
)


def settings(bridge: Bridge, **options: object) -> WorkerSettings:
    return WorkerSettings(bootstrap_servers=bridge.bootstrap_servers, namespace=bridge.namespace, **{**FAST, **options})


class Seen:
    """Findings of one examination."""

    def __init__(self, bridge: Bridge, questions: Questions | None = None, **options: object) -> None:
        self.report = examine(settings(bridge, **options), questions)

    def lines(self, check: str) -> list[tuple[str, str]]:
        return [(one.level.value, one.text) for one in self.report.findings if one.check.value == check]

    def one(self, check: str, level: str) -> str:
        """Text of the only finding of this check and level. A finding that is not good must say what to do."""
        [found] = [one for one in self.report.findings if (one.check.value, one.level.value) == (check, level)]
        assert found.do or found.level in {Level.OK, Level.NOTE}
        return found.text


def run(bridge: Bridge, *arguments: str) -> tuple[int, str]:
    flags = ["--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace]
    result = CliRunner().invoke(app, ["doctor", *flags, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_a_healthy_namespace_has_nothing_to_do_and_exit_code_0(bridge: Bridge) -> None:
    bridge.worker()
    with bridge.member("orders", {"max.message.bytes": "2000000"}):
        real = bridge.create_topic("real")
        code, output = run(bridge, "--format", "json", "--group", "orders", "--real-topic", real)
        assert code == 0, output
        found = json.loads(output)
        assert (found["namespace"], found["healthy"], found["complete"]) == (bridge.namespace, True, True)
        assert found["bootstrap_servers"] == bridge.bootstrap_servers
        assert f"cluster {found['cluster_id']}, " in found["findings"][0]["text"]
        assert {one["check"] for one in found["findings"]} == EVERY
        assert {one["level"] for one in found["findings"]} == {"ok", "note"}
        text = {one["check"]: one["text"] for one in found["findings"]}
        assert "1 broker (1 127.0.0.1:" in text["connection"]
        assert text["versions"].startswith("txbridge 0.1.0, Python 3.")
        assert text["topics"] == "the five internal topics and 1 of checks are as they must be, with 2 partitions"
        assert text["retention"].startswith("15 checks take 7m 36s, the greatest age is 3d; ")
        assert "keeps messages for 7d" in text["retention"]
        assert text["replication"] == "there is one broker, so that nothing is replicated"
        assert text["workers"] == "1 alive (/127.0.0.1), and they have all 2 partitions"
        assert text["producers"] == "alive, with so many processes: orders (1)"
        assert text["transactions"] == "no Kafka transaction hangs in the internal topics"
        # The text for people: one line for each finding.
        code, output = run(bridge)
        assert code == 0
        about, *lines = output.splitlines()
        assert about == f"namespace {bridge.namespace} on cluster {found['cluster_id']} at {bridge.bootstrap_servers}"
        assert [line.split()[1] for line in lines] == [one["check"] for one in found["findings"]]


def test_an_unreachable_kafka_is_exit_code_2_in_text_and_json() -> None:
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-servers", "127.0.0.1:1", "--format", "json"])
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert (found["complete"], [one["check"] for one in found["findings"]]) == (False, ["connection"])
    assert "Connection refused" in found["findings"][0]["text"]
    assert found["findings"][0]["do"]


@contextmanager
def broker_setting(bridge: Bridge, name: str, value: str) -> Iterator[None]:
    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for answer in bridge.admin.incremental_alter_configs([resource]).values():
            answer.result(120)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


def test_limits_of_the_brokers_that_stop_a_worker(bridge: Bridge) -> None:
    text = Seen(bridge, commit_timeout=90_000).one("limits", "problem")
    assert "commit_timeout is 90000 ms, and broker 1 accepts 60000 at most (transaction.max.timeout.ms)" in text
    text = Seen(bridge, session_timeout=2_000_000).one("limits", "problem")
    assert "session_timeout is 2000000 ms, and broker 1 accepts 1800000 at most" in text
    with broker_setting(bridge, "unclean.leader.election.enable", "true"):
        eventually(lambda: Seen(bridge).lines("limits")[0][0] == "warning")
        assert "broker 1 elects leaders that are not in sync" in Seen(bridge).one("limits", "warning")


def test_commits_are_not_late_where_brokers_and_clients_compress(bridge: Bridge) -> None:
    """Faust cannot unpack each compression. A worker reads such ENDs itself, half a second later or more."""
    topic, worker = bridge.create_topic("orders", 1), bridge.worker()
    settings = {"bootstrap.servers": bridge.bootstrap_servers, "compression.type": "lz4"}

    def commit(*values: bytes) -> None:
        with TransactionProducer("orders", Commits(), settings, namespace=bridge.namespace) as producer:
            for value in values:
                producer.send_message_in_transaction(Message(topic, value))
                bridge.wait_visible(topic, [value])

    commit(b"1", b"2")
    # A provider may not let it be set. The client does not compress ENDs.
    bridge.alter_topic(bridge.names.end, compression_type="producer")
    commit(b"3", b"4")
    assert not worker.events("end_not_readable_by_faust")
    eventually(lambda: Seen(bridge).lines("topics")[0][0] == "warning")
    assert "compression.type is producer, must be uncompressed, or " in Seen(bridge).one("topics", "warning")
    worker.stop()
    [event] = bridge.worker().events("topics_differ")
    assert f"{bridge.names.end}: compression.type is producer" in str(event["topics"])


def test_missing_topics_and_wrong_settings_are_named_with_what_to_do(bridge: Bridge) -> None:
    names = bridge.names
    bridge.alter_topic(names.offset, segment_bytes=str(64 * 1024 * 1024), cleanup_policy="delete")
    bridge.alter_topic(names.half, message_timestamp_type="CreateTime")
    bridge.admin.delete_topics([names.discard])[names.discard].result(120)

    def found() -> dict[str, str]:
        return {text: level for level, text in Seen(bridge).lines("topics")}

    eventually(lambda: f"{names.discard}: does not exist" in found() and len(found()) == 4)
    assert found() == {
        f"{names.half}: message.timestamp.type is CreateTime, must be LogAppendTime": "problem",
        f"{names.offset}: cleanup.policy is delete, must be compact, or records that are needed are removed": "problem",
        f"{names.offset}: segment.bytes is 67108864, must be at most 16777216, or take-overs read more": "warning",
        f"{names.discard}: does not exist": "problem",
    }
    code, output = run(bridge)
    assert code == 1
    assert f"`txbridge topics apply --namespace {bridge.namespace}` creates it" in output


def test_a_shop_with_a_relay_alone_is_not_asked_for_what_workers_need(bridge: Bridge) -> None:
    names = Names(f"{bridge.namespace}-alone")
    alone = cast("Bridge", SimpleNamespace(bootstrap_servers=bridge.bootstrap_servers, namespace=names.namespace))
    questions, cluster = Questions(Role.RELAY, relay=True), bridge.cluster
    seen = Seen(alone, questions)
    assert seen.lines("topics") == [("problem", f"{names.outbox}: does not exist")]
    apply(cluster, names, PlanOptions(relay=True))
    # A new partition's leader may not know yet that it is.
    eventually(lambda: Seen(alone, questions).report.complete)
    seen = Seen(alone, questions)
    assert [one for one in seen.report.findings if one.level not in {Level.OK, Level.NOTE}] == []
    assert seen.lines("topics") == [("ok", f"{names.outbox} is as it must be, with 8 partitions")]
    assert seen.lines("workers") == [("note", "no topic of clients and workers is there, or shown to this user")]
    assert seen.lines("transactions") == [("ok", "no Kafka transaction hangs in the internal topics")]
    bridge.alter_topic(names.outbox, retention_ms="3600000")
    kept = f"{names.outbox}: retention.ms is 3600000 (1h), must be at least 604800000 (7d), or a relay that comes back "
    eventually(
        lambda: (
            Seen(alone, questions).lines("retention")[:1]
            == [("warning", f"{kept}later does not know what it has sent")]
        )
    )
    # With workers in the namespace, both are examined.
    apply(cluster, names, PlanOptions())
    assert [level for level, _ in Seen(alone, questions).lines("topics")] == ["ok", "ok"]
    assert Seen(alone, questions).one("workers", "problem").startswith("no worker is alive")


def test_rows_of_an_outbox_are_judged_by_what_kafka_says(bridge: Bridge, tmp_path: Path) -> None:
    url, real, full = f"sqlite:///{tmp_path}/app.db", bridge.create_topic("real", 1), bridge.create_topic("full", 1)
    bridge.alter_topic(full, max_message_bytes="60")
    engine = make_outbox(url)
    with engine.begin() as connection:
        messages = [Message(real, b"1", partition=9), Message(f"{real}-gone", b"2"), Message(full, b"3")]
        Outbox().add(connection, *messages, Message(real, b"4"))
    flags = ("--relay", "--database-url", url, "--format", "json")
    found = [one["text"] for one in json.loads(run(bridge, *flags)[1])["findings"] if one["check"] == "relay"]
    assert found[0] == (
        "3 rows of txbridge_outbox cannot be sent, and later rows of the same topic or key wait for them: "
        f"1 (topic {real} has 1 partition, so no partition 9), 2 (topic {real}-gone does not exist), 3 (topic {full}: "
        "max.message.bytes is 60, and Kafka's own transaction marker takes 78 bytes: raise it)"
    )
    assert found[1].endswith("; row 4 was not sent within 3s")
    engine.dispose()


def test_a_group_and_a_real_topic_that_are_not_there_yet(bridge: Bridge) -> None:
    """The rights on a missing topic are not known. They are no second problem."""
    code, output = run(bridge, "--group", "new", "--real-topic", f"{bridge.namespace}-new", "--format", "json")
    assert code == 1
    found = [one for one in json.loads(output)["findings"] if one["level"] in {"problem", "unknown"}]
    assert {(one["check"], one["text"]) for one in found if one["check"] != "workers"} == {
        ("topics", f"{bridge.names.check('new')}: does not exist"),
        (
            "topics",
            f"the real topic {bridge.namespace}-new does not exist: messages for it are held once they are committed",
        ),
    }
    _, text = run(bridge, "--group", "new", "--real-topic", f"{bridge.namespace}-new")
    assert f"`txbridge topics apply --namespace {bridge.namespace} --group new` creates it" in text
    assert f"`txbridge topics apply --namespace {bridge.namespace} --real-topic {bridge.namespace}-new`" in text


@contextmanager
def allowed(
    bridge: Bridge,
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    denied: Sequence[AclOperation] = (),
) -> Iterator[None]:
    """Allow only these operations on the resource to everybody inside the block; all users are ANONYMOUS here."""
    wanted = [(operation, AclPermissionType.ALLOW) for operation in operations]
    wanted += [(operation, AclPermissionType.DENY) for operation in denied]
    bindings = [AclBinding(kind, name, pattern, "User:*", "*", *one) for one in wanted]
    for answer in bridge.admin.create_acls(bindings).values():
        answer.result(120)
    try:
        yield
    finally:
        one = AclBindingFilter(kind, name, pattern, None, None, AclOperation.ANY, AclPermissionType.ANY)
        for answer in bridge.admin.delete_acls([one]).values():
            answer.result(120)


def test_missing_rights_are_named_one_by_one(bridge: Bridge) -> None:
    names = bridge.names
    real = bridge.create_topic("real", 1)
    topic, group, fence = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
    with (
        allowed(bridge, topic, names.offset, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS),
        allowed(bridge, topic, real, AclOperation.READ),
        allowed(bridge, group, names.worker_group, AclOperation.DESCRIBE),
        allowed(bridge, fence, f"{names.half}@", AclOperation.DESCRIBE, pattern=ResourcePatternType.PREFIXED),
    ):
        questions = Questions(real_topics=(real,))
        eventually(lambda: len(Seen(bridge, questions).lines("rights")) == 4)
        assert Seen(bridge, questions).lines("rights") == [
            ("problem", f"missing right WRITE on topic {names.offset}"),
            ("problem", f"missing right WRITE on topic {real}"),
            ("problem", f"missing right READ on group {names.worker_group}"),
            ("problem", f"missing right WRITE on transactional id {names.half}@CID_RMQ_SYS_TRANS/*"),
        ]
        # An operator has all rights that the role needs: WRITE for END and READ for the others.
        text = Seen(bridge, Questions(Role.OPERATOR)).one("rights", "ok")
        assert text == "this user has the rights of the role operator"
    # Asking for the right has neither made a producer nor fenced anyone.
    written = transactional_ids_written(bridge)
    eventually(lambda: Seen(bridge, questions).lines("rights")[0][0] == "ok")
    assert transactional_ids_written(bridge) == written


def transactional_ids_written(bridge: Bridge) -> int:
    """The number of records in Kafka's own topic about transactional ids."""
    topic = "__transaction_state"
    partitions = bridge.admin.list_topics(topic, 10).topics[topic].partitions
    ends = bridge.admin.list_offsets({TopicPartition(topic, one): OffsetSpec.latest() for one in partitions})
    return sum(end.result(120).offset for end in ends.values())


def test_what_may_not_be_looked_at_is_unknown_and_exit_code_2(bridge: Bridge) -> None:
    cluster = ResourceType.BROKER  # confluent-kafka's name for the cluster in an ACL
    denied = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    with allowed(bridge, cluster, "kafka-cluster", AclOperation.ALL, denied=denied):
        eventually(lambda: Seen(bridge).lines("limits")[0][0] == "unknown")
        seen = Seen(bridge, Questions(Role.DOCTOR))
        assert "could not be read" in seen.one("limits", "unknown")
        assert seen.one("rights", "problem") == "missing right DESCRIBE, DESCRIBE_CONFIGS on cluster kafka-cluster"
        assert run(bridge)[0] == 2
    eventually(lambda: Seen(bridge).lines("limits")[0][0] == "ok")
    with allowed(bridge, ResourceType.TOPIC, bridge.names.op, AclOperation.WRITE):
        eventually(lambda: Seen(bridge).lines("topics")[0][0] == "unknown")
        seen = Seen(bridge)
        assert seen.one("topics", "unknown") == (
            f"missing right DESCRIBE_CONFIGS on topic {bridge.names.op}: whether it is as it must be, is not known"
        )
        assert "this user may not see the internal topics" in seen.one("backlog", "unknown")


def test_a_hidden_topic_is_not_taken_for_a_missing_one(bridge: Bridge) -> None:
    """Doctor, plan, pending, audit and worker name the missing right, and tell nobody to delete or create a topic."""
    hidden = bridge.names.half
    with allowed(bridge, ResourceType.TOPIC, hidden, denied=[AclOperation.ALL]):
        eventually(lambda: Seen(bridge).lines("topics")[0][0] == "unknown")
        seen = Seen(bridge)
        assert seen.lines("topics") == [
            (
                "unknown",
                f"missing right DESCRIBE on topic {hidden}: whether it is there, and as it must be, is not known",
            )
        ]
        assert "delete" not in run(bridge)[1]
        flags = ["--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace]
        for command in (["topics", "plan"], ["pending"], ["audit"], ["worker"]):
            done = run_txbridge(*command, *flags)
            said = " ".join((done.stdout + done.stderr).split())
            assert done.returncode == 2, said
            assert f"missing right DESCRIBE on topic {hidden}" in said
            for wrong in ("does not exist", "topics apply", "no topic", "partitions, must have"):
                assert wrong not in said


def test_producer_groups_that_are_hidden_are_not_said_to_be_none(bridge: Bridge) -> None:
    prefix = bridge.names.check("")
    pattern = ResourcePatternType.PREFIXED
    with allowed(bridge, ResourceType.TOPIC, prefix, denied=[AclOperation.ALL], pattern=pattern):
        eventually(lambda: Seen(bridge).lines("producers")[0][0] == "unknown")
        assert f"missing right DESCRIBE on topic {prefix}*" in Seen(bridge).one("producers", "unknown")


def test_no_worker_and_partitions_that_nobody_has(bridge: Bridge) -> None:
    assert "no worker is alive (the group" in Seen(bridge).one("workers", "problem")
    stranger = Consumer({**quiet(bridge.bootstrap_servers), "group.id": bridge.names.worker_group})
    stranger.subscribe([bridge.create_topic("other", 1)])
    try:

        def joined() -> bool:
            stranger.poll(0.2)
            return (
                Seen(bridge).lines("workers")[0][0] == "problem" and "alive (/" in Seen(bridge).lines("workers")[0][1]
            )

        eventually(joined)
        assert Seen(bridge).one("workers", "problem") == (
            f"1 alive (/127.0.0.1), but nobody has partitions 0, 1 of {bridge.names.end}"
        )
    finally:
        stranger.close()


def test_messages_of_a_dead_group_held_discarded_and_overdue_ones(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bridge.create_topic("real")
    worker = bridge.worker()
    with bridge.member("mortal") as member:
        bridge.prepare(topic, b"given up", group="mortal")
        held = bridge.prepare(f"{bridge.namespace}.missing", b"held")
        bridge.decide(held, COMMIT)
        eventually(lambda: member.count == 3 and bridge.discarded())
    bridge.prepare(topic, b"waits", group="mortal")
    bridge.prepare(topic, b"waits, too", group="mortal")
    eventually(lambda: Seen(bridge).lines("producers")[0][0] == "warning", 20)
    seen = Seen(bridge)
    text = seen.one("producers", "warning")
    assert "no member of the producer group mortal is connected, to Kafka or a front door, and 2 undecided" in text
    assert "at 3d they are discarded" in text
    texts = [text for level, text in seen.lines("backlog") if level == "warning"]
    assert texts == [
        f"committed messages are held, because their real topics do not take them: {bridge.namespace}.missing (1)",
        "undecided messages were given up and can be resumed: mortal (1)",
    ]
    worker.stop()
    monkeypatch.setattr("txbridge.doctor.run.time", SimpleNamespace(time_ns=lambda: time.time_ns() + 120 * 10**9))
    assert "2 undecided messages should have been checked" in Seen(bridge).lines("backlog")[-1][1]
    assert run(bridge)[0] == 1


def test_an_open_kafka_transaction_that_nobody_ends(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_run, "_ABORTED_AFTER_MS", 1_000)
    bridge.worker()
    foreign = Producer(
        {
            **quiet(bridge.bootstrap_servers),
            "transactional.id": f"{bridge.namespace}-stranger",
            "transaction.timeout.ms": 60_000,
        }
    )
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(bridge.names.discard, b"stranger", partition=0)
    foreign.flush(120)
    text = Seen(bridge, commit_timeout=2_000).one("transactions", "problem")
    where = f"{bridge.names.discard}[0]"
    assert text == f"{where} has an open Kafka transaction at offset 0 for more than 3s: nobody reads beyond it"
    # One that is ended meanwhile is no fault, and the doctor waits no longer than for that.
    began = time.monotonic()
    ending = threading.Timer(3, foreign.abort_transaction, [10])
    ending.start()
    assert Seen(bridge, commit_timeout=50_000).lines("transactions")[0][0] == "ok"
    ending.join()
    assert 2 < time.monotonic() - began < 50
    # END and HALF must not be written in Kafka transactions at all.
    bridge.produce(bridge.names.end, value=b"outside", partition=1)
    foreign.begin_transaction()
    foreign.produce(bridge.names.end, b"stranger", partition=0)
    foreign.flush(120)
    text = Seen(bridge, commit_timeout=2_000).one("transactions", "warning")
    assert text.startswith(f"{bridge.names.end}[0] has an open Kafka transaction at offset ")
    assert text.endswith(", where none may be: what it aborts decides nothing, and the decisions behind it wait")
    foreign.abort_transaction(10)
