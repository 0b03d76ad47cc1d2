"""Requests of administrators: mqadmin, dashboards, and the admin clients of Java and Go. A door answers few of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, TypeVar

from txbridge_rocketmq import mapping, routes
from txbridge_rocketmq.access import AccessKey, require_group, require_topic
from txbridge_rocketmq.codes import RequestCode, RequestError, ResponseCode
from txbridge_rocketmq.command import RemotingCommand
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.remoting_connection import DoorConnection
from txbridge_rocketmq.requests import parse_topic
from txbridge_rocketmq.topic_admin import TopicAdmin

T = TypeVar("T")

#: The list of topics is read from Kafka once in this time (s), however often it is asked for.
_LIST_S = 10.0


class MqadminRequests:
    """Requests of administrators and their answers, for the event loop only."""

    def __init__(self, door: Door, topics: TopicAdmin) -> None:
        self._door = door
        self._topics = topics
        #: One thread: these requests are rare, and must take no time from those of producers.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="txbridge-admin")
        self._listing: asyncio.Future[list[str]] | None = None
        self._listed_at = 0.0
        self.handlers: dict[int, Callable[[DoorConnection, RemotingCommand, AccessKey | None], Awaitable[bytes]]] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._describe_door,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._describe_cluster,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._list_producers,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._list_topics,
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
        await self._run(self._topics.create_topic, topic, queues, f"{key.name} at {connection.peer}")
        self._door.forget_topic(topic)
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

    async def _list_topics(self, *_: object) -> bytes:
        if self._listing is None or time.monotonic() - self._listed_at > _LIST_S:
            self._listed_at = time.monotonic()
            self._listing = asyncio.ensure_future(self._run(self._topics.list_topics))
        try:
            return _json({"topicList": await asyncio.shield(self._listing)})
        except Exception:
            self._listing = None
            raise

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        """Begin no more requests to Kafka. One that runs ends within its time-out."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
