"""Harness of the integration tests: a namespace with topics, worker processes, and raw records in and out of it.

It writes half messages and decisions by docs/protocol.md with plain confluent-kafka, so that a test can do what no
client would. It has the sandbox's worker processes and its way to wait (txbridge.testing.backends), but it is no
Sandbox. A Sandbox is for tests of an application: the test turns the clock of its workers, its topics have one replica,
and it identifies a message by its client. Here the worker is the command that operators start, with fault points, on
clusters of several brokers. Its owners also run in this process, and messages come from no client.
tests/integration/test_sandbox.py tests the sandbox.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.support.forked import LoggedProgram
from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Headers, Names
from txbridge.core.plan.choice import Limits
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.each_broker import KeptConnections
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.log_ends import LogEnds
from txbridge.operations.connection import Connection
from txbridge.testing import backends
from txbridge.topics.plan import PlanOptions, TopicAction
from txbridge.topics.verify import apply as apply_plan
from txbridge.worker.partition_context import PartitionContext
from txbridge.worker.partitions import PartitionOwner

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

#: Short times, so that a check is due after 1 s and a discard after a few seconds.
FAST = {
    "transaction_timeout": 1_000,
    "transaction_check_interval": 1_000,
    "transaction_check_max": 3,
    "session_timeout": 3_000,
}

#: The signal at which a worker of tests.support.failing_worker fails.
FAIL = signal.SIGRTMIN

#: With a load of 30 on two cores everything takes many times as long. On a quiet machine no test waits longer because
#: of it.
_BUSY = 6

_number = itertools.count(1)


def eventually(what: Callable[[], Any], timeout: float = 30.0, message: str | Callable[[], str] = "") -> Any:
    """Wait as the sandbox does, on a machine that may be busy. `timeout` is ample on a quiet machine."""
    return backends.eventually(what, timeout * _BUSY, message)


def at_this_load(seconds: float) -> float:
    """A limit that is right on a quiet machine, longer by what waits for each of its processors (s)."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far, in user and system mode."""
    return cpu_seconds_in(Path(f"/proc/{pid}/stat").read_text())


def cpu_seconds_in(stat: str) -> float:
    """Processor time in a /proc stat line of a process or of one thread."""
    # User and system time are the 14th and the 15th field; the 2nd is a name, which may hold anything.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quiet(bootstrap_servers: str) -> dict[str, object]:
    """Settings of a plain client of a test, without log output.

    librdkafka logs to stderr from threads of its own, past pytest's capture, when a test has stopped Kafka. A client
    may outlive its test, because an AdminClient cannot be closed. Tests learn all they need from calls and callbacks.
    """
    return {"bootstrap.servers": bootstrap_servers, "log_level": 0}


def log_start(consumer: Consumer, topic: str, partition: int) -> int:
    """First offset of a partition. Waits out the second in which a restarted broker leads no partition yet.

    A leader that has just been elected waits for its followers before it names an end.
    """
    passing = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE}
    deadline = time.monotonic() + 120
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 120)[0])
        except KafkaException as failure:
            if failure.args[0].code() not in passing or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass(frozen=True)
class Prepared:
    """A half message that Kafka has acknowledged."""

    partition: int
    offset: int
    transaction_id: str

    def entry(self, decision: int, check_times: int | None = None) -> str:
        text = f"{self.offset},{self.transaction_id},{decision}"
        return text if check_times is None else f"{text},{check_times}"


class WorkerProcess(LoggedProgram):
    """A `txbridge worker` in a process of its own, as an operator starts it."""

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: dict[str, str], failing: str | None = None
    ) -> None:
        """`failing` is a fault of tests.support.failing_worker."""
        program = ["txbridge.cli.main"] if failing is None else ["tests.support.failing_worker", failing]
        super().__init__([*program, "worker", *arguments], log, environment)

    def fail(self) -> None:
        """Let the fault happen that it was started with."""
        self._process.send_signal(FAIL)

    def wait_logged(self, text: str, timeout: float = 30.0) -> None:
        super().wait_logged(text, timeout * _BUSY)

    def wait_serving(self, partitions: int, timeout: float = backends.SERVING_TIMEOUT_S) -> None:
        super().wait_serving(partitions, timeout * _BUSY)

    def wait_dead(self, timeout: float = 30.0) -> int:
        return super().wait_dead(timeout * _BUSY)

    def owned(self) -> set[int]:
        """The partitions of the group's latest assignment to this worker."""
        assignments = self.events("partitions_assigned")
        return set(assignments[-1]["partitions"]) if assignments else set()

    @property
    def cpu_seconds(self) -> float:
        """Processor time that the worker has used so far."""
        return cpu_seconds(self.pid)


class CheckMember:
    """A live member of a producer group, as Kafka's group membership sees it, that reads the group's checks."""

    def __init__(self, bootstrap_servers: str, names: Names, group: str) -> None:
        # By partition and offset. A member that has lost its session on a busy machine joins again, and reads again.
        self._checks: dict[tuple[int | None, int | None], Message] = {}
        self._joined, self._left = threading.Event(), threading.Event()
        self._consumer = Consumer(
            {
                **quiet(bootstrap_servers),
                "group.id": names.check(group),
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "session.timeout.ms": 3_000,
                "heartbeat.interval.ms": 500,
            }
        )
        self._consumer.subscribe([names.check(group)], on_assign=lambda *_: self._joined.set())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._joined.wait(120), f"nobody could join the group {names.check(group)}"

    def _run(self) -> None:
        while not self._left.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._checks.setdefault((message.partition(), message.offset()), message)
        self._consumer.close()

    @property
    def count(self) -> int:
        """The number of checks that were received."""
        return len(self._checks)

    def all_requests(self) -> list[Message]:
        """All checks that were received."""
        return list(self._checks.values())

    def requests(self, prepared: Prepared) -> list[Message]:
        """The checks of this half message that were received."""
        where = f"{prepared.partition}:{prepared.offset}".encode()
        return [one for one in self.all_requests() if dict(one.headers() or ())["TXB_HALF"] == where]

    def checks(self, prepared: Prepared) -> list[dict[str, bytes]]:
        """Headers of the checks of this half message that were received."""
        return [dict(message.headers() or ()) for message in self.requests(prepared)]

    def leave(self) -> None:
        self._left.set()
        self._thread.join(120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class LocalOwner:
    """The owner of one partition in this process. Without Faust, END events come only from `offer`."""

    def __init__(self, context: PartitionContext, partition: int, confirm: Callable[[int], bool]) -> None:
        self._brokers = context.brokers
        self.owner = PartitionOwner(context, partition, confirm)
        self.owner.start()

    def wait_serving(self, timeout: float = 30.0) -> Self:
        eventually(lambda: self.owner.status.serving, timeout, f"not serving: {self.owner.status.error}")
        return self

    def wait_error(self, *texts: str, timeout: float = 60.0) -> str:
        """Wait until the owner's error names all of these."""
        eventually(
            lambda: all(text in (self.owner.status.error or "") for text in texts),
            timeout,
            f"no error with {texts}, but {self.owner.status}",
        )
        return self.owner.status.error or ""

    def stop(self) -> None:
        self.owner.stop()
        self.owner.join(120)
        assert not self.owner.is_alive()
        self._brokers.close()

    def __enter__(self) -> Self:
        return self.wait_serving()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _produce_all(producer: Producer, topic: str, records: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Produce records with these arguments, and return their acknowledgements in the same order."""
    acknowledged: dict[int, Message] = {}

    def report(number: int, error: object, message: Message) -> None:
        assert error is None, error
        acknowledged[number] = message

    for number, record in enumerate(records):
        producer.produce(topic, on_delivery=partial(report, number), **record)
        producer.poll(0)
    producer.flush(120)
    return [acknowledged[number] for number in range(len(records))]


_UNDECODABLE = """
import ast, asyncio, sys
from aiokafka import AIOKafkaProducer

class Name(str):
    def encode(self, *_): return b"\\xff\\xfe"

async def main(servers, topic, partition, value, key, headers):
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    headers = [*ast.literal_eval(headers), (Name("x"), b"1")]
    value, key = ast.literal_eval(value), ast.literal_eval(key)
    stored = await producer.send_and_wait(topic, value, key, partition=int(partition), headers=headers)
    print(stored.offset)
    await producer.stop()

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Bridge:
    """A namespace on a running Kafka."""

    bootstrap_servers: str
    test: str
    partitions: int = 2
    workers: list[WorkerProcess] = field(default_factory=list)
    owners: list[LocalOwner] = field(default_factory=list)

    def __post_init__(self) -> None:
        short = re.sub(r"[^a-z0-9]+", "-", self.test.lower())[:40].strip("-")
        self.namespace = f"t{next(_number)}-{short}-{secrets.token_hex(2)}"
        self.names = Names(self.namespace)
        self.cluster = KafkaCluster(lambda: AdminClient(quiet(self.bootstrap_servers)))
        self.admin = self.cluster.admin
        self._producer = Producer({**quiet(self.bootstrap_servers), "enable.idempotence": True, "linger.ms": 1})
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-test-")
        self._log_number = itertools.count(1)

    def __enter__(self) -> Self:
        self.make_topics()
        return self

    def make_topics(self) -> None:
        plans = apply_plan(
            KafkaCluster.connect({"bootstrap.servers": self.bootstrap_servers}),
            self.names,
            PlanOptions(partitions=self.partitions),
        )
        assert all(plan.action is not TopicAction.REFUSED for plan in plans), plans

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        # A failed test may have left owners that would run on beside the next tests.
        for owner in self.owners:
            owner.owner.stop()
        for worker in self.workers:
            worker.stop()
        if error is not None:
            for number, worker in enumerate(self.workers, 1):
                print(f"--- log of worker {number} ---\n{worker.log[-6000:]}")
        for local in self.owners:
            local.stop()
        # Owners refer to this object: their Kafka clients would have threads until Python looks for cycles.
        self.owners.clear()
        self.close()

    def close(self) -> None:
        """Delete the logs of the workers, which have ended."""
        self._producer.close()
        self._folder.cleanup()

    def worker(
        self,
        fault: str = "",
        app_id: str | None = None,
        *,
        wait: int | None = None,
        failing: str | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        **options: object,
    ) -> WorkerProcess:
        """Start a worker and wait until it serves its partitions and is a member of the group.

        `fault` is a fault point at which it dies, `failing` a fault of tests.support.failing_worker. `wait` is the
        partitions to wait for (default: all). Options are those of FAST unless given.
        """
        settings: dict[str, object] = {**FAST, **options}
        if app_id is not None:
            settings["app_id"] = app_id
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        worker = WorkerProcess(
            [f"--bootstrap-servers={self.bootstrap_servers}", f"--namespace={self.namespace}", *flags],
            Path(self._folder.name) / f"worker-{next(self._log_number)}.log",
            {"TXBRIDGE_FAULT_POINT": fault, "TXBRIDGE_LOG_FORMAT": "json", **environment},
            failing,
        )
        self.workers.append(worker)
        if wait is None:
            wait = 0 if fault else self.partitions
        if wait:
            worker.wait_serving(wait)
            # A lone worker serves before that.
            worker.wait_logged("partitions_assigned")
        return worker

    def local_owner(
        self,
        partition: int = 0,
        confirm: Callable[[int], bool] = lambda _: True,
        outside: Outside = OUTSIDE,
        kafka: Mapping[str, object] = MappingProxyType({}),
        **options: int,
    ) -> LocalOwner:
        """An owner in this process.

        Options are those of CheckPolicy, commit_timeout, payload_memory, and entries and bytes of one Kafka
        transaction. `kafka` are librdkafka's properties besides the servers.
        """
        settings = {name: value for name, value in FAST.items() if name != "session_timeout"} | options
        brokers = KeptConnections({"bootstrap.servers": self.bootstrap_servers, **kafka})
        context = PartitionContext(
            kafka={"bootstrap.servers": self.bootstrap_servers, **kafka},
            cluster=self.cluster,
            membership=GroupMembership(self.cluster.make_client),
            brokers=brokers,
            ends=LogEnds(brokers, outside),
            names=self.names,
            commit_timeout_ms=settings.pop("commit_timeout", 10_000),
            payload_memory=settings.pop("payload_memory", 64 * 1024 * 1024),
            check_rate=1_000,
            largest=Limits(settings.pop("entries", 10_000), settings.pop("bytes", 16 * 1024 * 1024)),
            policy=CheckPolicy(**settings),
            outside=outside,
        )
        self.owners.append(LocalOwner(context, partition, confirm))
        return self.owners[-1]

    def member(self, group: str = "group", config: Mapping[str, str] = MappingProxyType({})) -> CheckMember:
        """A live member of a producer group. Makes its check topic with this configuration, if that is missing."""
        topic = self.names.check(group)
        if topic not in self.admin.list_topics(timeout=120).topics:
            config = {"message.timestamp.type": "LogAppendTime", "segment.ms": "600000", **config}
            self.admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(120)
        return CheckMember(self.bootstrap_servers, self.names, group)

    def create_topic(self, topic: str, partitions: int = 2, **config: str) -> str:
        """Create a real topic and return its name, made unique for this test."""
        name = f"{self.namespace}.{topic}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        # The number of replicas is the cluster's default.
        self.admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(120)
        self.await_topic(name)
        return name

    def await_topic(self, topic: str) -> None:
        """Wait until a new topic can be read: on a busy machine, a broker hears of it a moment after its creation."""
        eventually(lambda: self._is_readable(topic), 20, f"{topic} got no leader")

    def _is_readable(self, topic: str) -> bool:
        try:
            self.read(topic)
            # Nothing can be read of a topic that the broker does not know, and that is no error.
            return bool(self.admin.list_topics(topic, 120).topics[topic].partitions)
        except KafkaException:
            return False

    def produce(self, topic: str, **arguments: object) -> Message:
        """Produce one record of any content and return its acknowledgement."""
        return _produce_all(self._producer, topic, [arguments])[0]

    def produce_undecodable(
        self, topic: str, value: bytes, headers: Sequence[tuple[str, bytes]], partition: int, key: bytes | None = None
    ) -> int:
        """Produce a record with one more header, whose name is not UTF-8, and return its offset.

        Kafka accepts any bytes as the name. Our clients do not.
        """
        arguments = [self.bootstrap_servers, topic, str(partition), repr(value), repr(key), repr(list(headers))]
        result = subprocess.run(
            [sys.executable, "-c", _UNDECODABLE, *arguments],
            env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"},
            check=True,
            capture_output=True,
            text=True,
        )
        return int(result.stdout)

    def half_headers(
        self, real_topic: str, group: str = "group", transaction_id: str | None = None
    ) -> list[tuple[str, bytes]]:
        transaction_id = transaction_id or secrets.token_hex(16).upper()
        return [
            ("TXB_V", b"1"),
            ("TRAN_MSG", b"true"),
            ("REAL_TOPIC", real_topic.encode()),
            ("PGROUP", group.encode()),
            ("UNIQ_KEY", transaction_id.encode()),
        ]

    def prepare(
        self,
        real_topic: str,
        value: bytes | None = b"value",
        *,
        key: bytes | None = None,
        partition: int | None = None,
        group: str = "group",
        headers: Sequence[tuple[str, bytes | None]] = (),
        extra: Sequence[tuple[str, bytes]] = (),
    ) -> Prepared:
        """Prepare one half message. `headers` are the user's, `extra` are more of ours."""
        ours = [*self.half_headers(real_topic, group), *extra]
        where = {} if partition is None else {"partition": partition}
        message = self.produce(self.names.half, value=value, key=key, headers=[*headers, *ours], **where)
        return Prepared(message.partition(), message.offset(), dict(ours)["UNIQ_KEY"].decode())

    def send_again(self, prepared: Prepared, real_topic: str, value: bytes | None = b"value") -> Prepared:
        """Send the same half message again, as a producer without idempotence does."""
        headers = self.half_headers(real_topic, transaction_id=prepared.transaction_id)
        message = self.produce(self.names.half, value=value, headers=headers, partition=prepared.partition)
        return Prepared(message.partition(), message.offset(), prepared.transaction_id)

    def prepare_many(
        self, real_topic: str, values: Sequence[bytes], *, partition: int | None = None, group: str = "group"
    ) -> list[Prepared]:
        """Prepare many at once, in order."""
        where = {} if partition is None else {"partition": partition}
        headers = [self.half_headers(real_topic, group) for _ in values]
        records = [
            {"value": value, "key": b"%d" % number, "headers": headers[number], **where}
            for number, value in enumerate(values)
        ]
        return [
            Prepared(message.partition(), message.offset(), dict(own)["UNIQ_KEY"].decode())
            for message, own in zip(_produce_all(self._producer, self.names.half, records), headers, strict=True)
        ]

    def produce_together(
        self, topic: str, records: Sequence[tuple[bytes | None, Headers]], *, partition: int
    ) -> list[Message]:
        """Produce values with headers as one batch, so that they are also read together."""
        producer = Producer({**quiet(self.bootstrap_servers), "linger.ms": 10_000})
        together = [{"value": value, "headers": [*headers], "partition": partition} for value, headers in records]
        return _produce_all(producer, topic, together)

    def end_headers(self, group: str = "group", source: str = "client") -> list[tuple[str, bytes]]:
        return [("TXB_V", b"1"), ("PGROUP", group.encode()), ("SOURCE", source.encode())]

    def end(self, entries: Sequence[str], partition: int, *, group: str = "group", source: str = "client") -> int:
        """Write one END record and return its offset."""
        headers = self.end_headers(group, source)
        message = self.produce(self.names.end, value="\n".join(entries).encode(), headers=headers, partition=partition)
        return message.offset()

    def decide(self, prepared: Prepared, decision: int, **arguments: str) -> int:
        """Write one decision in an END record of its own."""
        return self.end([prepared.entry(decision)], prepared.partition, **arguments)

    def deliver(self, real_topic: str, value: bytes, partition: int = 0) -> None:
        """Prepare and commit a message, and wait until it is visible."""
        self.decide(self.prepare(real_topic, value, partition=partition), COMMIT)
        self.wait_visible(real_topic, [value])

    def stranger(self) -> Producer:
        """Another client's producer of Kafka transactions. A test may leave one open for two minutes."""
        name = f"{self.namespace}-stranger"
        made = Producer({**quiet(self.bootstrap_servers), "transactional.id": name, "transaction.timeout.ms": 120_000})
        made.init_transactions(30)
        return made

    def decide_many(
        self, prepared: Sequence[Prepared], decision: int, *, batch: int = 50, group: str = "group"
    ) -> None:
        """Write the same decision for all, in END records of up to `batch` entries."""
        by_partition: dict[int, list[str]] = {}
        for one in prepared:
            by_partition.setdefault(one.partition, []).append(one.entry(decision))
        headers = self.end_headers(group)
        for partition, entries in by_partition.items():
            for start in range(0, len(entries), batch):
                value = "\n".join(entries[start : start + batch]).encode()
                self._producer.produce(self.names.end, value=value, headers=headers, partition=partition)
        self._producer.flush(120)

    def read(self, topic: str, *, committed: bool = True) -> list[Message]:
        """All current records of a topic, as a new reader sees them."""
        consumer = Consumer(
            {
                **quiet(self.bootstrap_servers),
                "group.id": f"{self.namespace}-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                # The broker shall not wait for more records at the end of the log: this read is short.
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            partitions = consumer.list_topics(topic, 120).topics[topic].partitions
            starts = [
                TopicPartition(topic, partition, log_start(consumer, topic, partition)) for partition in partitions
            ]
            consumer.assign(starts)
            found: list[Message] = []
            ended: set[int] = set()
            deadline = time.monotonic() + 120
            while len(ended) < len(starts):
                assert time.monotonic() < deadline, f"{topic} did not come to an end"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.name() == "_PARTITION_EOF":
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return found

    def visible(self, topic: str) -> Counter[bytes]:
        """Values that a read_committed reader sees, with the number of copies."""
        return Counter(message.value() for message in self.read(topic))

    def wait_visible(self, topic: str, values: Sequence[bytes], timeout: float = 40.0) -> None:
        """Wait until all of these values are visible."""
        wanted = set(values)
        eventually(
            lambda: wanted <= set(self.visible(topic)), timeout, f"not all of {len(wanted)} values became visible"
        )

    def connection(self) -> Connection:
        """The namespace, as operations see it."""
        return Connection.open(WorkerSettings(bootstrap_servers=self.bootstrap_servers, namespace=self.namespace))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First and next offset of a partition."""
        consumer = Consumer({**quiet(self.bootstrap_servers), "group.id": f"{self.namespace}-reader"})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 120)
        finally:
            consumer.close()
        return low, high

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove all records below this offset, as retention does."""
        where = TopicPartition(topic, partition, before)
        for answer in self.admin.delete_records([where]).values():
            answer.result(120)

    def recreate(self, topic: str) -> None:
        """Delete an internal topic and create it anew."""
        self.admin.delete_topics([topic])[topic].result(120)
        eventually(lambda: topic not in self.admin.list_topics(timeout=120).topics, 20)
        self.__enter__()
        eventually(lambda: self._is_readable(topic), 20)

    def offset_records(self, partition: int) -> dict[bytes, dict[str, object]]:
        """The records of OFFSET for a partition after compaction: checkpoint and parked entries by key."""
        found: dict[bytes, dict[str, object]] = {}
        for message in self.read(self.names.offset):
            if message.partition() != partition:
                continue
            if message.value() is None:
                found.pop(message.key(), None)
            else:
                found[message.key()] = json.loads(message.value())
        return found

    def checkpoint(self, partition: int) -> dict[str, object]:
        return self.offset_records(partition).get(self.names.checkpoint_key(partition), {})

    def parked_states(self, partition: int) -> list[object]:
        """The states of the parked entries of a partition."""
        return [entry["state"] for entry in self.offset_records(partition).values() if "state" in entry]

    def alter_topic(self, topic: str, **config: str) -> None:
        """Change a topic's configuration; underscores stand for dots."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for answer in self.admin.incremental_alter_configs([resource]).values():
            answer.result(120)

    def discarded(self) -> list[dict[str, object]]:
        """Records of the discard topic as header mappings (last of a name), with key and value."""
        return [
            {"key": message.key(), "value": message.value(), **dict(message.headers() or ())}
            for message in self.read(self.names.discard)
        ]

    def count_answers(self) -> int:
        """Number of answers to checks in END."""
        its = (record for record in self.read(self.names.end) if ("SOURCE", b"check") in (record.headers() or ()))
        return sum((record.value() or b"").count(b"\n") + 1 for record in its)

    def outcomes(self) -> dict[tuple[int, int], list[str]]:
        """The outcomes in OP by half coordinates, in OP's order."""
        found: dict[tuple[int, int], list[str]] = {}
        for message in self.read(self.names.op):
            outcome = dict(message.headers())["OUTCOME"].decode()
            for offset in message.value().split(b","):
                found.setdefault((message.partition(), int(offset)), []).append(outcome)
        return found

    def wait_outcome(self, prepared: Prepared, outcome: str, timeout: float = 30.0) -> None:
        """Wait until the last outcome in OP for this half message is this one."""
        where = (prepared.partition, prepared.offset)
        eventually(
            lambda: self.outcomes().get(where, [""])[-1] == outcome, timeout, f"{where} did not become {outcome}"
        )
