"""The remoting protocol of RocketMQ's classic clients: frames in, answers and checks out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from txbridge.core.names import TRACE_TOPIC
from txbridge.log import get_logger
from txbridge_rocketmq import identity, mapping, routes
from txbridge_rocketmq.access import AccessKey, require_group, require_topic
from txbridge_rocketmq.admin import MqadminRequests
from txbridge_rocketmq.codes import (
    CONSUMER_REFUSAL,
    NAMESPACE_REFUSAL,
    RequestCode,
    RequestError,
    ResponseCode,
    refusal,
)
from txbridge_rocketmq.command import MAX_FRAME, ONEWAY, RemotingCommand, encode
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.message import Address
from txbridge_rocketmq.remoting_connection import DoorConnection
from txbridge_rocketmq.requests import is_inner_group, parse_end, parse_send
from txbridge_rocketmq.sends import StoredRecord, as_request_error

_log = get_logger("txbridge.rocketmq")

#: Field of a request with the namespaceV2 of its client. Tenants with the same topics would share them.
_NAMESPACE = "ns"
#: Maximum of groups of one connection. No producer has more; that would be an attack.
_MAX_GROUPS = 1_000
#: Maximum size of a heartbeat in bytes: those groups with names of 200 characters, and a consumer's subscriptions.
#: Larger JSON would stop the event loop for seconds.
_MAX_HEARTBEAT = 256 * 1024


class Remoting:
    """Requests of the remoting protocol and their answers, for the event loop only."""

    def __init__(self, door: Door, admin: MqadminRequests) -> None:
        self._door = door
        self._admin = admin
        self._metrics = door.metrics
        self.memory = door.memory
        self.max_frame = MAX_FRAME
        self.connections: set[DoorConnection] = set()
        #: Of the metric `requests`, by the codes of the request (None: not known) and of the answer.
        self._counters: dict[tuple[int | None, int], Counter] = {}
        self._handlers: dict[int, Callable[[DoorConnection, RemotingCommand, AccessKey | None], Awaitable[None]]] = {
            RequestCode.SEND_MESSAGE: self._on_send,
            RequestCode.SEND_MESSAGE_V2: self._on_send,
            RequestCode.SEND_BATCH_MESSAGE: self._on_send,
            RequestCode.END_TRANSACTION: self._on_end,
            RequestCode.HEART_BEAT: self._on_heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._on_unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._on_route,
            **dict.fromkeys(admin.handlers, self._on_admin_request),
        }

    def add_connection(self, connection: DoorConnection) -> None:
        self.connections.add(connection)
        self._metrics.connections.set(len(self.connections))

    def drop_connection(self, connection: DoorConnection, reason: str | None) -> None:
        self.connections.discard(connection)
        self._metrics.connections.set(len(self.connections))
        if reason is not None:
            self._metrics.closed.labels(reason).inc()
        self._door.groups.drop_member(connection)

    def count_answer(self, request: int, code: int) -> None:
        # A client may send any code. Only known ones become a label.
        which = (request if request in _REQUESTS else None, code)
        counter = self._counters.get(which)
        if counter is None:
            name = "(other)" if which[0] is None else RequestCode(request).name
            counter = self._counters[which] = self._metrics.requests.labels(name, ResponseCode(code).name)
        counter.inc()

    def handle_command(self, connection: DoorConnection, command: RemotingCommand) -> None:
        """Serve one request; never raises. Requests begin in the order of these calls."""
        # A response is the answer to a check, which no client sends.
        if not command.is_response:
            self._door.spawn_task(self._serve(connection, command, connection.begin_request()))

    async def _serve(self, connection: DoorConnection, command: RemotingCommand, finish: Callable[[], None]) -> None:
        handler = self._handlers.get(command.code)
        try:
            try:
                key = self._admit_client(connection, command)
            except RequestError:
                if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    raise
                # Without a route, a client tells its application only that there is none. With one it sends, and the
                # answer to the SEND has the reason. This route is the same for every topic, and gives nothing away.
                self._send_route(connection, command, routes.DEFAULT_QUEUES)
                return
            if handler is None:
                if refusal(command.code) is CONSUMER_REFUSAL:
                    group = command.fields.get("consumerGroup") or command.fields.get("group", "")
                    self._door.refuse_consumer("remoting", group, connection.peer)
                raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, refusal(command.code))  # noqa: TRY301
            await handler(connection, command, key)
        except Exception as error:  # noqa: BLE001  one request must not end the door
            _refuse(connection, command, as_request_error(error, str(command.code), connection.peer))
        finally:
            finish()

    def _admit_client(self, connection: DoorConnection, command: RemotingCommand) -> AccessKey | None:
        key = self._door.setting.access.check_request(command, connection.peer)
        if command.fields.get(_NAMESPACE):
            raise RequestError(ResponseCode.INVALID_PARAMETER, NAMESPACE_REFUSAL)
        return key

    async def _on_route(self, connection: DoorConnection, command: RemotingCommand, _key: AccessKey | None) -> None:
        topic = command.fields.get("topic", "")
        count = routes.DEFAULT_QUEUES
        # A client asks for the default topic to learn an address, if it knows no topic or its topic does not exist.
        if topic != routes.DEFAULT_TOPIC:
            try:
                count = await self._door.count_queues(topic, connection.peer)
            except RequestError:
                # Traces without a topic are accepted, and dropped.
                if topic != TRACE_TOPIC:
                    raise
        self._send_route(connection, command, count)

    def _send_route(self, connection: DoorConnection, command: RemotingCommand, queues: int) -> None:
        route = routes.route(self._door.setting.addresses, queues)
        connection.send_response(command, ResponseCode.SUCCESS, body=route)

    async def _on_admin_request(
        self, connection: DoorConnection, command: RemotingCommand, key: AccessKey | None
    ) -> None:
        body = await self._admin.handlers[command.code](connection, command, key)
        connection.send_response(command, ResponseCode.SUCCESS, body=body)

    async def _on_heartbeat(self, connection: DoorConnection, command: RemotingCommand, key: AccessKey | None) -> None:
        producers, consumers = _introduced(command.body)
        # The connection may be lost since the request was read. A member that nobody removes would get checks for ever.
        if connection in self.connections:
            self._door.set_groups(connection, (one for one in producers if not is_inner_group(one)), key)
        for group in consumers:
            self._door.refuse_consumer("remoting", group, connection.peer)
        if consumers:
            # Its producers are served all the same.
            raise RequestError(ResponseCode.NO_PERMISSION, CONSUMER_REFUSAL)
        connection.send_response(command, ResponseCode.SUCCESS)

    async def _on_unregister(self, connection: DoorConnection, command: RemotingCommand, key: AccessKey | None) -> None:
        group = command.fields.get("producerGroup")
        if group and not is_inner_group(group):
            require_group(key, group)
            self._door.groups.leave_group(connection, group)
        connection.send_response(command, ResponseCode.SUCCESS)

    async def _on_send(self, connection: DoorConnection, command: RemotingCommand, key: AccessKey | None) -> None:
        send = parse_send(command)
        if not send.is_trace:
            require_group(key, send.group)
        # Any client traces, and does so to this topic unless its application has chosen another one.
        if not send.is_trace or send.topic != TRACE_TOPIC:
            require_topic(key, send.topic)
        stored = await self._door.sends.send_message(send, command.body, connection.peer)
        connection.send_response(command, ResponseCode.SUCCESS, fields=_told(connection, stored, send.is_batch))

    async def _on_end(self, connection: DoorConnection, command: RemotingCommand, key: AccessKey | None) -> None:
        await self._door.send_decision(parse_end(command), key, is_awaited=not command.is_oneway)
        connection.send_response(command, ResponseCode.SUCCESS)

    def check_frame(self, question: ClientCheck, local: Address, opaque: int) -> bytes:
        """The request that asks a client for the outcome of its local transaction. `local` is the door's address."""
        message, uniq_key = question.message, question.uniq_key
        stored = mapping.checked(message, question.group, local)
        which = identity.table_offset(question.fingerprint, message.half_offset)
        fields = {
            # As in RocketMQ, both come back with the answer. The first also has the number of the check.
            "tranStateTableOffset": str(identity.packed(message.check_times & 0x7FFF, which)),
            "commitLogOffset": str(stored.physical_offset),
            "msgId": uniq_key,
            "transactionId": uniq_key,
            "offsetMsgId": identity.message_id(local, stored.physical_offset),
            "topic": message.topic,
            "bname": routes.broker_name(self._door.setting.addresses[0]),
        }
        return encode(RequestCode.CHECK_TRANSACTION_STATE, opaque, fields, stored.encode_message(), flag=ONEWAY)

    def drop_requests(self) -> None:
        """Begin no more requests."""
        for connection in self.connections:
            connection.drop_requests()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()


_REQUESTS = frozenset(RequestCode)


def _refuse(connection: DoorConnection, command: RemotingCommand, error: RequestError) -> None:
    _log.debug("request_refused", peer=connection.peer, request=command.code, code=error.code, remark=error.remark)
    if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC and command.language == "GO":
        # The admin client of Go takes any answer for success. Without one its CreateTopic fails after five seconds.
        return
    connection.send_response(command, error.code, error.remark)


def _told(connection: DoorConnection, stored: list[StoredRecord], is_batch: bool) -> dict[str, str]:
    """Fields of the answer for stored messages."""
    first = stored[0]
    ids = [identity.message_id(connection.local, identity.packed(one.partition, one.offset)) for one in stored]
    fields = {
        "msgId": ",".join(ids),
        "queueId": str(first.queue),
        # The END of a transaction returns it.
        "queueOffset": str(identity.table_offset(first.transaction[identity.SIGNED_DIGITS :], first.offset)),
        "MSG_REGION": "DefaultRegion",
        # Clients with enableMsgTrace make a trace of the message, as with RocketMQ's default.
        "TRACE_ON": "true",
    }
    return {**fields, "transactionId": first.uniq_key} if first.uniq_key and not is_batch else fields


def _introduced(body: bytes) -> tuple[frozenset[str], list[str]]:
    """The producer groups of a heartbeat, and the consumer groups. Raises RequestError."""
    if len(body) > _MAX_HEARTBEAT:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"a heartbeat may have at most {_MAX_HEARTBEAT // 1024} KiB")
    try:
        given = json.loads(body)
        producers, consumers = (
            [one["groupName"] for one in given.get(name) or ()] for name in ("producerDataSet", "consumerDataSet")
        )
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, "the heartbeat is not the JSON of a RocketMQ client"
        ) from None
    names = [*producers, *consumers]
    if not all(isinstance(one, str) for one in names) or len(names) > _MAX_GROUPS:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"a heartbeat may name at most {_MAX_GROUPS} groups")
    return frozenset(producers), consumers
