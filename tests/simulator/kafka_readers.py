"""Simulated consumer and admin client, limited to the calls of an owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource

from tests.simulator.actors import Actor
from tests.simulator.cluster import WANTS_KEYS
from tests.simulator.partition_log import Stored
from tests.simulator.witness import Witness
from tests.simulator.world import World
from txbridge.core.names import Headers
from txbridge.kafka.proven_end import LATEST, View
from txbridge.kafka.topic_lookup import LARGEST_BATCH


def kafka_exception(code: int, text: str, *, fatal: bool = False, abort: bool = False) -> KafkaException:
    """An error of librdkafka or of a broker."""
    return KafkaException(KafkaError(code, text, fatal, code == KafkaError._TIMED_OUT, abort))


class SimulatedMessage:
    """A record of a consumer or of a delivery report."""

    __slots__ = ("_error", "_offset", "_partition", "_stored", "_topic")

    def __init__(
        self, topic: str, partition: int, offset: int, stored: Stored | None = None, error: KafkaError | None = None
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._stored, self._error = stored, error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return self._stored.key if self._stored else None

    def value(self) -> bytes | None:
        return self._stored.value if self._stored else None

    def headers(self) -> Headers | None:
        return self._stored.headers if self._stored else None

    def leader_epoch(self) -> int | None:
        return self._stored.leader_epoch if self._stored else None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, self._stored.timestamp if self._stored else 0


class SimulatedConsumer:
    """A consumer of one assigned partition."""

    def __init__(self, world: World, actor: Actor, config: Mapping[str, Any]) -> None:
        self._world, self._actor = world, actor
        self._committed = config["isolation.level"] == "read_committed"
        self._place: tuple[str, int] | None = None
        self._offset = 0
        self._told_end = -1
        self._fetched: deque[SimulatedMessage] = deque()
        self._positions = world.positions.setdefault(actor.name, {})
        self._number = max(self._positions, default=0) + 1

    def assign(self, places: list[TopicPartition]) -> None:
        self._place = (places[0].topic, places[0].partition)
        self._offset, self._told_end = places[0].offset, -1
        self._fetched.clear()

    def unassign(self) -> None:
        self._place = None
        self._fetched.clear()

    def close(self) -> None:
        self._place = None
        self._positions.pop(self._number, None)

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        """The result of an earlier fetch: no I/O, and only for the metrics."""
        assert cached
        return 0, self._world.cluster.logs[place.topic, place.partition].high_watermark

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        self._actor.io()
        if self._world.strikes("metadata not answered"):
            self._actor.wait(int(timeout * 1000))
            raise kafka_exception(KafkaError._TRANSPORT, "no broker answers")
        # Who leads is found out by questions here.
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={})})

    def _end_of(self, place: tuple[str, int]) -> int:
        """End of the log for this reader, as known to the broker that it takes for the leader."""
        log = self._world.cluster.logs[place]
        return self._world.seen_end(place, log.last_stable_offset if self._committed else log.high_watermark)

    def poll(self, timeout: float) -> SimulatedMessage | None:
        if not self._fetched:
            self._fetch(timeout)
        return self._fetched.popleft() if self._fetched else None

    def consume(self, number: int, _timeout: float) -> list[SimulatedMessage]:
        return [self._fetched.popleft() for _ in range(min(number, len(self._fetched)))]

    def _fetch(self, timeout: float) -> None:
        self._actor.io(self._place[0] if self._place else "")
        if self._place is None:
            return
        topic, partition = self._place
        if topic == self._world.rests_at:
            self._world.rests(self._actor.name, timeout)
        log = self._world.cluster.logs[self._place]
        if self._world.strikes("fetch slow"):
            self._actor.wait(int(timeout * 1000) or 1)
            return
        if self._world.strikes("fetch failed"):
            # The first error passes by itself, the second ends the owner's turn.
            code = self._world.random.choice((KafkaError._TRANSPORT, KafkaError.UNKNOWN))
            self._fetched.append(
                SimulatedMessage(topic, partition, self._offset, error=KafkaError(code, "fetch failed"))
            )
            return
        if not self._has_news() and timeout > 0:
            self._actor.wait(int(timeout * 1000), self._has_news)
        end = self._end_of(self._place)
        if self._offset > self._world.seen_end(self._place, log.high_watermark):
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "offset out of range")
            self._fetched.append(SimulatedMessage(topic, partition, self._offset, error=error))
            return
        limit = self._world.random.randint(1, 3) if self._world.strikes("fetch small") else 1_000
        records, self._offset = log.visible(self._offset, limit, committed=self._committed, end=end)
        for stored in records:
            self._fetched.append(SimulatedMessage(topic, partition, stored.offset, stored))
        if self._offset >= end and self._told_end != self._offset:
            self._told_end = self._offset
            error = KafkaError(KafkaError._PARTITION_EOF, "end")
            self._fetched.append(SimulatedMessage(topic, partition, self._offset, error=error))
        self._positions[self._number] = self._offset
        self._world.saw(self._actor.name, "fetch", topic, self._offset, len(self._fetched))

    def _has_news(self) -> bool:
        if self._place is None:
            return False
        end = self._end_of(self._place)
        return self._offset < end or self._told_end != self._offset


class HasActor(Protocol):
    """A process, which gets its actor after its clients."""

    actor: Actor
    witness: Witness


class SimulatedBrokers:
    """Three brokers, asked at the same time.

    A former leader takes itself for the leader; the others know better. An acknowledged record is on two of them: the
    leader, and a follower that knows the leader. The third may know less than both.
    """

    _NODES = (1, 2, 3)
    _TIMEOUT_MS = 2_000

    def __init__(self, world: World, process: HasActor) -> None:
        self._world, self._process = world, process

    def close(self) -> None:
        """Nothing to close."""

    def views_of(self, topic: str, partition: int) -> Iterator[tuple[int, View]]:
        world, actor = self._world, self._process.actor
        actor.io(topic)
        # The former leader is the fastest.
        for node in () if world.strikes("metadata not answered") else self._roles(topic, partition):
            if not world.strikes("broker not answering"):
                former, leader, _ = self._roles(topic, partition)
                says = former if node == former and self._has_former(topic, partition) else leader
                world.saw(actor.name, "view", node, topic, says)
                yield node, View(says, frozenset(self._NODES), frozenset(self._NODES))
        actor.wait(self._TIMEOUT_MS)

    def offsets_of(self, node: int, topic: str, partitions: Iterable[int], at: int) -> Mapping[int, int] | None:
        """Log starts or ends. An owner has one partition here, and asks for nothing else."""
        world, actor = self._world, self._process.actor
        [partition] = partitions
        actor.io(topic)
        if world.strikes("broker not answering") or world.strikes("offsets not answered"):
            actor.wait(self._TIMEOUT_MS)
            return None
        former, leader, _ = self._roles(topic, partition)
        end = world.cluster.logs[topic, partition].high_watermark
        if node == former and self._has_former(topic, partition):
            end = world.seen_end((topic, partition), end)
        elif node != leader:
            return {}
        world.saw(actor.name, "offsets of", node, topic, end)
        return {partition: end if at == LATEST else 0}

    def _has_former(self, topic: str, partition: int) -> bool:
        return self._world.has_former_leader((topic, partition))

    def _roles(self, topic: str, partition: int) -> list[int]:
        """The former leader, the leader and the follower."""
        first = World.hash(f"{topic}/{partition}".encode())
        return [self._NODES[(first + number) % 3] for number in range(3)]


@dataclass(slots=True)
class _Description:
    """The part of describe_topics' and describe_consumer_groups' answers that the worker reads."""

    topic_id: str = ""
    partitions: tuple[SimpleNamespace, ...] = ()
    authorized_operations: None = None
    members: tuple[int, ...] = ()


class SimulatedAdmin:
    """Answers about topics and groups."""

    def __init__(self, world: World, process: HasActor) -> None:
        self._world, self._process = world, process
        #: Answer about groups from now on, whatever Kafka says: only another client helps.
        self._group_fault = ""
        #: The client still uses a controller that is gone: only another client helps.
        self._remembers_controller = False

    def poll(self, _seconds: float) -> None:
        """Report nothing about connections."""

    def describe_topics(self, topics: TopicCollection, **_options: Any) -> dict[str, Future[_Description]]:
        self._process.actor.io()
        if self._world.strikes("metadata not answered"):
            raise kafka_exception(KafkaError._TIMED_OUT, "no answer to a request for metadata")
        if not self._remembers_controller and self._world.strikes("controller remembered"):
            self._remembers_controller = True
        if self._remembers_controller:
            raise kafka_exception(KafkaError._TIMED_OUT, "Timed out waiting for controller")
        self._world.saw(self._process.actor.name, "topics")
        return {topic: self._topic(topic) for topic in topics.topic_names}

    def describe_configs(
        self, resources: Iterable[ConfigResource], **_options: Any
    ) -> dict[ConfigResource, Future[Any]]:
        """Answer about the configuration of topics, as far as this user may see it."""
        self._process.actor.io()
        self._world.saw(self._process.actor.name, "configs")
        answers = {resource: Future[Any]() for resource in resources}
        for resource, answer in answers.items():
            if not self._world.cluster.exists(resource.name):
                answer.set_exception(kafka_exception(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown topic"))
            elif not self._world.cluster.shows_configs:
                answer.set_exception(kafka_exception(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no right"))
            else:
                # Without max.message.bytes: in a simulation it limits the values alone, and not whole records.
                wants_keys = self._world.cluster.picky.get(resource.name) == WANTS_KEYS
                config = {
                    "cleanup.policy": "compact" if wants_keys else "delete",
                    "message.timestamp.after.max.ms": "3600000",
                }
                if resource.name in self._world.cluster.endless:
                    config[LARGEST_BATCH] = "10"
                answer.set_result({name: SimpleNamespace(value=value) for name, value in config.items()})
        return answers

    def _topic(self, topic: str) -> Future[_Description]:
        answer: Future[_Description] = Future()
        cluster = self._world.cluster
        if cluster.exists(topic):
            partitions = (SimpleNamespace(leader=0),) * cluster.partitions[topic]
            answer.set_result(_Description(topic_id=cluster.topic_ids[topic], partitions=partitions))
        else:
            answer.set_exception(kafka_exception(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown topic"))
        return answer

    def describe_consumer_groups(self, groups: Iterable[str], **_options: Any) -> dict[str, Future[_Description]]:
        self._process.actor.io()
        for fault in ("group client falls silent", "group coordinator remembered"):
            if not self._group_fault and self._world.strikes(fault):
                self._group_fault = fault
        answers = {}
        for group in groups:
            answer: Future[_Description] = Future()
            answers[group] = answer
            if self._group_fault == "group coordinator remembered":
                answer.set_exception(kafka_exception(KafkaError.NOT_COORDINATOR, "not the coordinator"))
            elif self._group_fault:
                continue
            elif self._world.strikes("group not answered"):
                answer.set_exception(kafka_exception(KafkaError.COORDINATOR_NOT_AVAILABLE, "no coordinator"))
            elif self._world.strikes("group answered late"):
                answer_late = partial(self._answer, answer, group, late=True)
                self._world.late_requests.append(("describe group", answer_late))
            else:
                self._answer(answer, group, late=False)
        return answers

    def _answer(self, answer: Future[_Description], group: str, *, late: bool) -> None:
        if not answer.done():
            members = self._world.cluster.members.get(group, 0)
            self._world.trace(f"{self._process.actor.name}: told that {group} has {members} members")
            self._process.witness.told(group, members, late=late)
            answer.set_result(_Description(members=tuple(range(members))))
