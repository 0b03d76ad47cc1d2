"""Requests of administrators (mqadmin, dashboards, admin clients of Java and Go), and what they do to real topics."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from txbridge.core.names import TRACE_TOPIC
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.admin import Bounds, KafkaCluster, TopicRequest
from txbridge.log import get_logger
from txbridge.topics.plan import RealTopic
from txbridge.topics.verify import Layout
from txbridge_rocketmq import mapping, routes
from txbridge_rocketmq.access import AccessKey, require_group, require_topic
from txbridge_rocketmq.codes import RequestCode, RequestError, ResponseCode
from txbridge_rocketmq.command import RemotingCommand
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.remoting_connection import DoorConnection
from txbridge_rocketmq.requests import parse_topic
from txbridge_rocketmq.topics import Look, NoAnswerError

#: Topics of RocketMQ's brokers. Clients and mqadmin name them by themselves.
_OF_BROKERS = frozenset(
    {routes.DEFAULT_TOPIC, TRACE_TOPIC, "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)
#: Most attempts to create a topic by a mere name, because a client may send any name.
_MAX_CREATIONS = 1_000
#: Time-out of a request about topics (s). It takes milliseconds if Kafka answers, and clients wait for three seconds.
_REQUEST_S = 2.5
#: Time (s) until brokers know a new topic, and the pause between two looks. It takes some tens of milliseconds.
_VISIBLE_S, _PAUSE_S = 1.0, 0.02

_log = get_logger("txbridge.rocketmq")


class TopicAdmin:
    """Makes requests about real topics with an admin client. Its methods block, and are thread-safe."""

    def __init__(self, look: Look, cluster: KafkaCluster, layout: Layout, automatic: int) -> None:
        """`automatic` is the number of partitions of topics that `look_or_create` creates; 0: it creates none."""
        self._look = look
        self._cluster = cluster
        self._layout = layout
        self._automatic = automatic
        self._lock = threading.Lock()
        self._created = 0

    def look_or_create(self, names: Sequence[str]) -> Mapping[str, int | NoAnswerError]:
        """Count the partitions of topics that clients may send to, as `Look`, and create the missing ones."""
        found = self._look(names)
        missing = [name for name, count in found.items() if count == 0 and name not in _OF_BROKERS]
        chosen = missing[: self._take_attempts(len(missing))] if self._automatic and missing else []
        if not chosen:
            return found
        try:
            refusals = self._create_topics(chosen, self._automatic)
        except EnvironmentProblemError as error:
            return {**found, **dict.fromkeys(chosen, NoAnswerError(str(error)))}
        for name, reason in refusals.items():
            if reason is None:
                _log.info("topic_created", topic=name, partitions=self._automatic, by="--auto-create-topics")
            else:
                _log.error("topic_not_created", topic=name, error=reason)
        return {**found, **self._look_until_visible([name for name in chosen if refusals[name] is None])}

    def create_topic(self, topic: str, partitions: int, by: str) -> None:
        """Create a topic for somebody who may. One that exists must have as many partitions.

        Raises RequestError and NoAnswerError.
        """
        count = self._look([topic])[topic]
        if count == 0:
            try:
                reason = self._create_topics([topic], partitions)[topic]
            except EnvironmentProblemError as error:
                raise NoAnswerError(str(error)) from None
            if reason is not None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"Kafka has not created the topic: {reason}")
            _log.info("topic_created", topic=topic, partitions=partitions, by=by)
            count = self._look_until_visible([topic]).get(topic, 0)
        if isinstance(count, NoAnswerError):
            raise count
        if count not in {0, partitions}:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the topic {topic} exists, and has {count} partitions: the txbridge door changes no topic, "
                "because another number changes where keys go; kafka-topics.sh --alter adds partitions",
            )

    def _create_topics(self, names: Sequence[str], partitions: int) -> dict[str, str | None]:
        """Create topics, replicated like HALF. Returns the reason for each that was refused, else None."""
        layout, size = self._layout, self._layout.max_message_size
        in_sync = {"min.insync.replicas": str(layout.min_insync_replicas)}
        requests = [
            TopicRequest(one, partitions, layout.replication_factor, {**RealTopic(one).config_for(size), **in_sync})
            for one in names
        ]
        return self._cluster.within(Bounds(Deadline(_REQUEST_S))).create_topics(requests, dry_run=False)

    def _look_until_visible(self, names: Sequence[str]) -> Mapping[str, int | NoAnswerError]:
        deadline = Deadline(_VISIBLE_S)
        while 0 in (found := self._look(names) if names else {}).values() and not deadline.is_over:
            time.sleep(_PAUSE_S)
        return found

    def _take_attempts(self, wanted: int) -> int:
        """The number of topics that may be created now."""
        with self._lock:
            taken = min(wanted, _MAX_CREATIONS - self._created)
            self._created += taken
        if taken < wanted:
            _log.error("too_many_new_topics", topics=wanted - taken, most=_MAX_CREATIONS, next="create them in Kafka")
        return taken


class MqadminRequests:
    """Requests of administrators and their answers, for the event loop only."""

    def __init__(self, door: Door, topics: TopicAdmin) -> None:
        self._door = door
        self._topics = topics
        #: One thread: these requests are rare, and must take no time from those of producers.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="txbridge-admin")
        self.handlers: dict[int, Callable[[DoorConnection, RemotingCommand, AccessKey | None], Awaitable[bytes]]] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._describe_door,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._describe_cluster,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._list_producers,
        }

    async def _create_topic(self, connection: DoorConnection, command: RemotingCommand, key: AccessKey | None) -> bytes:
        if key is None or not key.is_admin:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this client may not create topics: create the topic in Kafka, or sign with an AccessKey that has "
                "admin = true in the file of --access-keys",
            )
        topic, queues = parse_topic(command.fields)
        require_topic(key, topic)
        mapping.check_topic(topic, self._door.setting.names)
        by = f"{key.name} at {connection.peer}"
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._topics.create_topic, topic, queues, by)
        self._door.topics.forget_topic(topic)
        return b""

    async def _describe_door(self, *_: object) -> bytes:
        return _json({"table": {"brokerActive": "true", "brokerVersionDesc": f"txbridge {version('txbridge')}"}})

    async def _describe_cluster(self, *_: object) -> bytes:
        return routes.cluster(self._door.setting.addresses)

    async def _list_producers(
        self, _connection: DoorConnection, command: RemotingCommand, key: AccessKey | None
    ) -> bytes:
        group = command.fields.get("producerGroup", "")
        require_group(key, group)
        peers = [member.peer for member in self._door.groups.members_of(group)]
        if not peers:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"no producer of the group {group[:200]} is connected to this door and has sent a heartbeat",
            )
        # The door does not keep ids, languages and versions of clients.
        connections = [{"clientAddr": peer, "clientId": peer, "language": "OTHER", "version": 0} for peer in peers]
        return _json({"connectionSet": connections})

    def close(self) -> None:
        """Begin no more requests to Kafka. One that runs ends within its time-out."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
