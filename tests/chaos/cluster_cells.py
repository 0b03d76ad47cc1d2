"""The chaos cells on three brokers: replication factor 3, `min.insync.replicas` 2, sessions as long as Kafka's own."""

from __future__ import annotations

import resource
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.chaos.cells import STOPPED_S, Cell, Run
from tests.support.broker_metadata import BrokerMetadata, ask_metadata, wait_in_sync
from tests.support.harness import eventually, quiet
from tests.support.kafka_cluster import KafkaCluster
from txbridge.embedded import Node
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java

#: A killed broker is away for at least one session, so that other brokers take over.
_AWAY_S = 10.0
_ELECTIONS = 10
#: Limit in bytes. Larger segment files cannot grow any more.
_FULL_AT = 1_024

#: Move every partition of the topics to other brokers (argument 2 and on: servers are the first).
_REASSIGN = """
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;

public class Reassign {
    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) arguments[0]))) {
            List<String> topics = Arrays.asList(arguments).subList(1, arguments.length);
            Map<TopicPartition, Optional<NewPartitionReassignment>> moves = new HashMap<>();
            for (TopicDescription topic : admin.describeTopics(topics).allTopicNames().get().values())
                for (TopicPartitionInfo partition : topic.partitions()) {
                    List<Integer> replicas = new ArrayList<>();
                    for (Node node : partition.replicas()) replicas.add(node.id() % 4 + 1);
                    moves.put(new TopicPartition(topic.name(), partition.partition()),
                        Optional.of(new NewPartitionReassignment(replicas)));
                }
            admin.alterPartitionReassignments(moves).all().get();
            while (!admin.listPartitionReassignments().reassignments().get().isEmpty()) Thread.sleep(200);
        }
    }
}
"""


def metadata(node: Node) -> BrokerMetadata:
    """The cluster metadata that this broker has."""
    return eventually(lambda: ask_metadata(node.port))


def leader_of(run: Run, partition: str) -> Node:
    """The leader of a partition such as "orders/0", according to most brokers."""
    told = [metadata(node).partitions[partition].leader for node in run.kafka.brokers if node.is_running()]
    return run.kafka.brokers[max(set(told), key=told.count) - 1]


def coordinating(name: str, partitions: int) -> int:
    """Partition of Kafka's internal topic whose leader coordinates this group or transactional id."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", name.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFF_FFFF
    if value >= 1 << 31:
        value -= 1 << 32
    # The smallest 32-bit number has no absolute value in 32 bits. Kafka uses 0 for it.
    return 0 if value == -(1 << 31) else abs(value) % partitions


def _topic(run: Run, kind: str) -> str:
    names = run.bridge.names
    return {"HALF": names.half, "END": names.end, "OP": names.op, "OFFSET": names.offset, "real": run.topic}[kind]


def partition_of(run: Run, kind: str) -> str:
    """A partition of this kind of topic that the traffic needs."""
    names = run.bridge.names
    coordinated = {"__consumer_offsets": names.worker_group, "__transaction_state": names.transactional_id(0)}
    if kind not in coordinated:
        return f"{_topic(run, kind)}/0"
    # A partition that coordinates nothing of ours would not show the loss.
    known = metadata(run.kafka.brokers[0]).partitions
    number = sum(one.rpartition("/")[0] == kind for one in known)
    return f"{kind}/{coordinating(coordinated[kind], number)}"


def leader_dies(kind: str, away_s: float = _AWAY_S) -> Callable[[Run], None]:
    """A fault: kill -9 of the leader of a partition of this kind of topic. The broker comes back later."""

    def fault(run: Run) -> None:
        victim = leader_of(run, partition_of(run, kind))
        victim.kill()
        time.sleep(away_s)
        victim.start()
        wait_in_sync(run.kafka)

    return fault


def rolling_restart(times: int) -> Callable[[Run], None]:
    """A fault: SIGTERM, start and wait for the replicas, for each broker `times` times."""

    def fault(run: Run) -> None:
        for _ in range(times):
            for broker in run.kafka.brokers:
                broker.restart()
                wait_in_sync(run.kafka)

    return fault


def leader_away(
    away: Callable[[Run, Node], None], back: Callable[[Run, Node], None], away_s: float = STOPPED_S
) -> Callable[[Run], None]:
    """A fault: the leader of a HALF partition is away for some time."""

    def fault(run: Run) -> None:
        victim = leader_of(run, f"{run.bridge.names.half}/0")
        away(run, victim)
        time.sleep(away_s)
        back(run, victim)
        wait_in_sync(run.kafka)

    return fault


def leader_stopped(away_s: float = STOPPED_S) -> Callable[[Run], None]:
    """A fault: the leader of a HALF partition is stopped for some time."""
    return leader_away(lambda _, node: node.pause(), lambda _, node: node.resume(), away_s)


def two_are_gone(meanwhile: Callable[[Run], None] = lambda _: time.sleep(STOPPED_S)) -> Callable[[Run], None]:
    """A fault: fewer in-sync replicas than min.insync.replicas. No write succeeds, and no written record is lost."""

    def fault(run: Run) -> None:
        victims = run.kafka.brokers[:2]
        for victim in victims:
            victim.kill()
        try:
            meanwhile(run)
        finally:
            for victim in victims:
                victim.begin_start()
            for victim in victims:
                victim.wait_ready()
            wait_in_sync(run.kafka)

    return fault


def _elections(run: Run) -> None:
    """A fault: half of the brokers' leaderships move away and back again, several times."""
    admin = AdminClient(quiet(run.kafka.bootstrap_servers))
    for number in range(_ELECTIONS):
        run.kafka.brokers[number % 3].restart()
        wait_in_sync(run.kafka)
        partitions = [
            TopicPartition(topic, int(partition))
            for topic, _, partition in (one.rpartition("/") for one in metadata(run.kafka.brokers[0]).partitions)
        ]
        try:
            admin.elect_leaders(ElectionType.PREFERRED, partitions).result(120)
        except KafkaException as error:
            if error.args[0].name() != "ELECTION_NOT_NEEDED":
                raise


def _reassignment(run: Run) -> None:
    """A fault: every partition of ours moves to another set of brokers, of four."""
    with tempfile.TemporaryDirectory(prefix="txbridge-reassign-") as folder:
        source = Path(folder) / "Reassign.java"
        source.write_text(_REASSIGN)
        topics = [*(_topic(run, kind) for kind in ("HALF", "END", "OP", "OFFSET")), *run.topics]
        command = [find_java().executable, "-cp", JarCache().class_path, source, run.kafka.bootstrap_servers, *topics]
        for _ in range(2):
            subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_in_sync(run.kafka)


def _full_disk(run: Run) -> None:
    """A fault: writes of the leader of HALF fail as on a full disk.

    Kafka then ends this broker. Later there is space again.
    """
    victim = leader_of(run, f"{run.bridge.names.half}/0")
    resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (_FULL_AT, resource.RLIM_INFINITY))
    assert victim.wait(120) is not None, "a broker without room ends"
    victim.kill()
    time.sleep(_AWAY_S)
    victim.start()
    wait_in_sync(run.kafka)


class ClusterRun(Run):
    """A run on three brokers, which acknowledge late on a busy machine. More threads make larger requests."""

    threads = 384
    # As docs/performance.md advises: with less, librdkafka spins while it waits for an acknowledgement.
    settings: Mapping[str, object] = MappingProxyType({"linger.ms": 500})


def _cell(fault: Callable[[Run], None], **options: Any) -> Cell:
    """A cell with the same traffic and the same checker as on one node. `options` are those of the cluster."""
    return Cell(fault, lambda: KafkaCluster(heap="512m", jvm_profile="throughput", **options), ClusterRun)


CLUSTER_CELLS = {
    **{
        f"leader of {kind} kill -9": _cell(leader_dies(kind))
        for kind in ("HALF", "END", "OP", "OFFSET", "real", "__transaction_state", "__consumer_offsets")
    },
    "rolling restart, twice": _cell(rolling_restart(2)),
    "broker stop 30 s": _cell(leader_stopped()),
    "broker cut off 30 s": _cell(
        leader_away(lambda run, node: run.kafka.cut_off(node), lambda run, node: run.kafka.join_again(node)),
        can_cut_off=True,
    ),
    "two brokers gone 30 s": _cell(two_are_gone(), separate_controllers=True),
    "two brokers and the quorum gone 30 s": _cell(two_are_gone()),
    "preferred leaders": _cell(_elections),
    "reassignment": _cell(_reassignment, brokers=4),
    "full disk": _cell(_full_disk),
}
