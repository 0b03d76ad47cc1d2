"""The gRPC service of RocketMQ 5's clients, and its connections."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError

from txbridge.core.names import short_id
from txbridge.log import get_logger
from txbridge_rocketmq.access import AccessKey, require_group
from txbridge_rocketmq.codes import (
    CONSUMER_REFUSAL,
    RequestCode,
    RequestError,
    ResponseCode,
    UnauthenticatedError,
    refusal,
)
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.grpc_call import GrpcCall
from txbridge_rocketmq.grpc_messages import (
    SERVICE,
    Code,
    RpcError,
    definition,
    end_of,
    orphan_of,
    queues_of,
    send_of,
    service,
    settings_of,
    status_of,
    token,
    topic_of,
)
from txbridge_rocketmq.http2_connection import Http2Connection
from txbridge_rocketmq.http2_frames import CallError, Status
from txbridge_rocketmq.requests import SendRequest
from txbridge_rocketmq.sends import StoredRecord, as_request_error

_log = get_logger("txbridge.rocketmq")

#: Longest client id. Clients make it of host, process and counters: some 60 characters.
_LONGEST_CLIENT_ID = 255
#: Maximum of messages in one request. A client sends one at a time.
_MAX_MESSAGES = 1_000
#: Bytes of a request beside the body of its message, for properties and other fields.
_MORE_THAN_BODY = 256 * 1024
#: Minimum of the size limit of a request, in bytes: gRPC's own default.
_LEAST_MESSAGE = 4 * 1024 * 1024
#: Seconds between two looks whether all calls are answered, at the end.
_LOOK_S = 0.02
#: Where the calls of the service have their names.
_FOLDER = f"/{SERVICE.full_name}/"
TELEMETRY_PATH = f"{_FOLDER}Telemetry".encode()

#: Maximum of topics of one client. No producer has more; that would be an attack.
_MAX_TOPICS = 1_000
#: Topics of clients that have sent a transaction and have no stream yet. The oldest client is dropped first.
_MAX_EARLY = 10_000

#: A client's id, and the address of its connection. Two clients may have the same id: that of Rust is made of host,
#: process id and a counter, which are equal in two containers. And a process may have one connection for all clients.
ConnectedClient = tuple[str, str]

#: Refused calls, with what to do instead.
REFUSALS: dict[str, str] = {
    **dict.fromkeys(("ReceiveMessage", "AckMessage", "PullMessage", "QueryAssignment"), CONSUMER_REFUSAL),
    **dict.fromkeys(("UpdateOffset", "GetOffset", "QueryOffset", "ChangeInvisibleDuration"), CONSUMER_REFUSAL),
    **dict.fromkeys(("ForwardMessageToDeadLetterQueue", "SyncLiteSubscription"), CONSUMER_REFUSAL),
    "RecallMessage": refusal(RequestCode.RECALL_MESSAGE),
}

#: Serves a request. Takes the request, the caller, and the caller's access key.
_Handler = Callable[[Any, "_Caller", AccessKey | None], Awaitable[Any]]


class TelemetryStream:
    """One client's telemetry stream, for the event loop only."""

    def __init__(self, client: ConnectedClient, key: AccessKey | None, call: GrpcCall) -> None:
        self.client = client
        self.key = key
        self.call = call
        #: Topics that its producer has named or sent a transaction to; as with RocketMQ's proxy they are its groups.
        self.topics: set[str] = set()
        self.groups: frozenset[str] = frozenset()

    @property
    def peer(self) -> str:
        return self.client[1]

    @property
    def takes_checks(self) -> bool:
        return self.call.takes_messages

    def send_check(self, question: ClientCheck) -> None:
        self.send_command(orphan_of(question))

    def send_command(self, command: Any) -> None:
        """Send a command, unless the client takes none."""
        if self.takes_checks:
            self.call.write_message(command.SerializeToString())


class TelemetryStreams:
    """All telemetry streams of a door."""

    def __init__(self, door: Door, most: int) -> None:
        self._door = door
        self._most = most
        self._streams: dict[ConnectedClient, list[TelemetryStream]] = {}
        self._count = 0
        self._early: OrderedDict[ConnectedClient, set[str]] = OrderedDict()
        self._early_topics = 0

    def add_stream(self, stream: TelemetryStream) -> bool:
        """Add a stream; whether there is room for it."""
        if self._count >= self._most:
            _log.warning("stream_refused", most=self._most)
            return False
        self._streams.setdefault(stream.client, []).append(stream)
        self._count += 1
        self._door.metrics.streams.set(self._count)
        if early := self._early.pop(stream.client, None):
            self._early_topics -= len(early)
            self.add_topics(stream, early)
        return True

    def remove_stream(self, stream: TelemetryStream) -> None:
        of_client = self._streams[stream.client]
        of_client.remove(stream)
        if not of_client:
            del self._streams[stream.client]
        self._count -= 1
        self._door.metrics.streams.set(self._count)
        self._door.groups.drop_member(stream)

    def add_topics(self, stream: TelemetryStream, topics: set[str]) -> None:
        """Add topics that the client has named."""
        stream.topics |= set(sorted(topics)[: max(0, _MAX_TOPICS - len(stream.topics))])
        self._set_groups(stream)

    def note_half_message(self, client: ConnectedClient, topic: str) -> None:
        """Note that the client sends a half message, so that it is asked even if it has not named the topic before."""
        of_client = self._streams.get(client)
        if of_client is None:
            early = self._early.setdefault(client, set())
            self._early_topics += topic not in early
            early.add(topic)
            while self._early_topics > _MAX_EARLY:
                self._early_topics -= len(self._early.popitem(last=False)[1])
        else:
            for stream in of_client:
                if topic not in stream.topics:
                    self.add_topics(stream, {topic})

    def note_heartbeat(self, client: ConnectedClient, key: AccessKey | None) -> None:
        """Handle a heartbeat: another door may have created the check topic of one of the client's groups.

        Or the rights of its key have changed. Any client can send the id, so it must be the key of the stream.
        """
        for stream in self._streams.get(client, ()):
            if key is not None and stream.key is not None and key.name == stream.key.name:
                stream.key = key
            self._set_groups(stream)

    def leave_groups(self, client: ConnectedClient, key: AccessKey | None) -> None:
        """Remove a client from its groups. Any client can send the id, so the access key must be the stream's."""
        for stream in self._streams.get(client, ()):
            if stream.key == key:
                self._door.groups.drop_member(stream)
                stream.topics.clear()

    def end_streams(self) -> None:
        """End all streams."""
        for of_client in self._streams.values():
            for stream in of_client:
                stream.call.end_call()

    def _set_groups(self, stream: TelemetryStream) -> None:
        try:
            self._door.set_groups(stream, stream.topics, stream.key)
        except RequestError as error:
            # The client learns of it when it sends to the topic: the request is refused for the same reason.
            _log.debug("topic_not_joined", client=short_id(stream.client[0]), remark=error.remark)


class _Caller:
    """The client of a call, from the headers of the call."""

    def __init__(self, call: GrpcCall) -> None:
        client_id = call.header(b"x-mq-client-id")
        self.client_id = client_id if len(client_id) <= _LONGEST_CLIENT_ID else ""
        self.authorization = call.header(b"authorization")
        self.date_time = call.header(b"x-mq-date-time")
        self.peer = call.peer
        self.client: ConnectedClient = (self.client_id, self.peer)


class GrpcService:
    """The gRPC service of a door, for the event loop only."""

    def __init__(self, door: Door, *, max_streams: int) -> None:
        self._door = door
        self._setting = door.setting
        self._max_message = max(_LEAST_MESSAGE, door.setting.limits.value + _MORE_THAN_BODY)
        self.connections: set[Http2Connection] = set()
        self._streams = TelemetryStreams(door, max_streams)
        served: dict[str, _Handler] = {
            "QueryRoute": self._query_route,
            "Heartbeat": self._answer_heartbeat,
            "SendMessage": self._send_message,
            "EndTransaction": self._end_transaction,
            "NotifyClientTermination": self._answer_termination,
        }
        self._behaviours: dict[bytes, Callable[[GrpcCall], Awaitable[None]]] = {TELEMETRY_PATH: self._serve_telemetry}
        for method in SERVICE.methods:
            if method.name in served:
                request, response = (getattr(service, one.name) for one in (method.input_type, method.output_type))
                behaviour = self._behaviour_of(method.name, served[method.name], request, response)
                self._behaviours[f"{_FOLDER}{method.name}".encode()] = behaviour

    def make_connection(self) -> Http2Connection:
        """Make the connection of a client."""
        return Http2Connection(
            self._door.memory,
            self._max_message,
            self.connections,
            TELEMETRY_PATH,
            # A client that gives a call up does not stop what has begun.
            lambda call: self._door.spawn_task(self._serve_call(call)),
            self._count_late,
        )

    def _count_late(self, calls: list[GrpcCall]) -> None:
        """Count calls of a connection whose requests do not come, with one line in the log for the memory they hold."""
        names = [self._name_of(one) for one in calls]
        for name in names:
            self._count_answer(name, Code.REQUEST_TIMEOUT)
        held = sum(len(one.received) for one in calls)
        _log.warning("request_not_received", peer=calls[0].peer, request=names[0], calls=len(calls), bytes=held)

    async def close(self, patience: float) -> None:
        """Take no more calls, and wait up to `patience` seconds for the open ones. Clients go to another door."""
        for one in self.connections:
            one.stop_calls()
        self._streams.end_streams()
        until = time.monotonic() + patience
        while time.monotonic() < until and any(one.is_busy for one in self.connections):  # noqa: ASYNC110  none has an event for its last answer
            await asyncio.sleep(_LOOK_S)
        for one in list(self.connections):
            one.close()

    async def _serve_call(self, call: GrpcCall) -> None:
        try:
            await self._behaviours.get(call.path, self._refuse_call)(call)
        except CallError as error:
            call.end_call(error.status, error.remark)

    def _behaviour_of(
        self, name: str, handler: _Handler, request: Any, response: Any
    ) -> Callable[[GrpcCall], Awaitable[None]]:
        async def serve(call: GrpcCall) -> None:
            caller = _Caller(call)
            try:
                key = self._setting.access.check_rpc(caller.authorization, caller.date_time, caller.peer)
                answer = await handler(_parsed(request, call.request, name, caller), caller, key)
            except Exception as error:  # noqa: BLE001  one request must not end the door
                answer = response(status=status_of(as_request_error(error, name, caller.peer)))
            self._count_answer(name, answer.status.code)
            if answer.status.code != Code.OK:
                _log.debug(
                    "request_refused",
                    peer=caller.peer,
                    request=name,
                    code=answer.status.code,
                    remark=answer.status.message,
                )
            call.answer_request(answer.SerializeToString())

        return serve

    async def _refuse_call(self, call: GrpcCall) -> None:
        name = self._name_of(call)
        self._count_answer(name, Code.UNSUPPORTED)
        remark = REFUSALS.get(name, "the txbridge door does not know it")
        if remark is CONSUMER_REFUSAL:
            self._door.refuse_consumer("grpc", "", call.peer)
        raise CallError(Status.UNIMPLEMENTED, remark)

    @staticmethod
    def _name_of(call: GrpcCall) -> str:
        """Name of a call. A client may send any; only known ones become a label."""
        name = call.path.decode(errors="replace").removeprefix(_FOLDER)
        return name if name in SERVICE.methods_by_name else "(other)"

    def _count_answer(self, name: str, code: int) -> None:
        self._door.metrics.requests.labels(name, Code.Name(code)).inc()

    async def _query_route(self, request: Any, caller: _Caller, _key: AccessKey | None) -> Any:
        topic = topic_of(request.topic)
        queues = queues_of(topic, request.endpoints, await self._door.count_queues(topic, caller.peer))
        return service.QueryRouteResponse(status=_OK, message_queues=queues)

    async def _answer_heartbeat(self, request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        if request.client_type != definition.PRODUCER:
            self._door.refuse_consumer("grpc", request.group.name, caller.peer)
            raise RpcError(Code.UNSUPPORTED, CONSUMER_REFUSAL)
        self._streams.note_heartbeat(caller.client, key)
        return service.HeartbeatResponse(status=_OK)

    async def _answer_termination(self, _request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        self._streams.leave_groups(caller.client, key)
        return service.NotifyClientTerminationResponse(status=_OK)

    async def _serve_telemetry(self, call: GrpcCall) -> None:
        caller = _Caller(call)
        try:
            key = self._setting.access.check_rpc(caller.authorization, caller.date_time, caller.peer)
        except UnauthenticatedError as error:
            self._count_answer("Telemetry", Code.UNAUTHORIZED)
            raise CallError(Status.UNAUTHENTICATED, error.remark) from None
        if not caller.client_id:
            self._count_answer("Telemetry", Code.CLIENT_ID_REQUIRED)
            raise CallError(
                Status.INVALID_ARGUMENT,
                f"the header x-mq-client-id is missing, or has more than {_LONGEST_CLIENT_ID} characters",
            )
        stream = TelemetryStream(caller.client, key, call)
        if not self._streams.add_stream(stream):
            self._count_answer("Telemetry", Code.TOO_MANY_REQUESTS)
            raise CallError(Status.RESOURCE_EXHAUSTED, "too many clients: see --max-connections")
        try:
            await self._read_stream(stream)
            call.end_call()
        finally:
            self._streams.remove_stream(stream)

    async def _read_stream(self, stream: TelemetryStream) -> None:
        """Read the stream until the client ends it, or the door has to.

        The call ends at once then, even if the client takes no answers: nobody would read what it goes on to send.
        """
        call = stream.call
        async for content in call:
            try:
                command = _parsed(service.TelemetryCommand, content, "Telemetry", stream)
            except RequestError as error:
                self._count_answer("Telemetry", Code.BAD_REQUEST)
                call.end_call(Status.INVALID_ARGUMENT, error.remark)
                return
            if not command.HasField("settings"):
                # An answer to a command that the door never sends.
                continue
            settings = command.settings
            if settings.client_type not in {definition.PRODUCER, definition.CLIENT_TYPE_UNSPECIFIED}:
                self._count_answer("Telemetry", Code.UNSUPPORTED)
                self._door.refuse_consumer("grpc", settings.subscription.group.name, stream.peer)
                # At its start the client of Node waits for settings or a status, also when the stream has failed.
                status = definition.Status(code=Code.UNSUPPORTED, message=CONSUMER_REFUSAL)
                last = service.TelemetryCommand(status=status).SerializeToString()
                call.end_call(Status.UNIMPLEMENTED, CONSUMER_REFUSAL, last)
                return
            told = settings_of(settings, self._setting.limits.value)
            stream.send_command(service.TelemetryCommand(status=_OK, settings=told))
            self._count_answer("Telemetry", Code.OK)
            topics = {one.name for one in settings.publishing.topics if not one.resource_namespace}
            self._streams.add_topics(stream, topics)

    async def _send_message(self, request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        messages = request.messages
        if not messages or len(messages) > _MAX_MESSAGES:
            raise RpcError(Code.BAD_REQUEST, f"a request must have 1 to {_MAX_MESSAGES} messages")
        if len(messages) > 1 and any(one.system_properties.message_type == definition.TRANSACTION for one in messages):
            raise RpcError(Code.BAD_REQUEST, "a transactional message must be the only one in its request")
        # All are sent before the first is awaited, so that they keep the order of the request.
        entries = await asyncio.gather(*(self._answer_message(one, caller, key) for one in messages))
        bad = next((one.status for one in entries if one.status.code != Code.OK), None)
        return service.SendMessageResponse(status=bad or _OK, entries=entries)

    async def _answer_message(self, message: Any, caller: _Caller, key: AccessKey | None) -> Any:
        try:
            send, body = send_of(message)
            require_group(key, send.group)
            stored = await self._store_message(send, body, len(message.body), caller)
        except Exception as error:  # noqa: BLE001  the other messages of the request get their answers
            return service.SendResultEntry(status=status_of(as_request_error(error, "SendMessage", caller.peer)))
        which = token(stored.transaction, stored.partition, stored.offset) if stored.transaction else ""
        return service.SendResultEntry(
            status=_OK, message_id=stored.uniq_key, transaction_id=which, offset=stored.offset
        )

    async def _store_message(self, send: SendRequest, body: bytes, size: int, caller: _Caller) -> StoredRecord:
        if not self._door.memory.try_take_memory(size):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many messages are waiting for Kafka: send it again later")
        try:
            [stored] = await self._door.sends.send_message(send, body, caller.peer, caller.client_id)
        finally:
            self._door.memory.give_back(size)
            if send.is_transactional:
                # Kafka may have stored it, whatever it has answered.
                self._streams.note_half_message(caller.client, send.topic)
        return stored

    async def _end_transaction(self, request: Any, _caller: _Caller, key: AccessKey | None) -> Any:
        await self._door.send_decision(end_of(request, self._setting.secret), key, is_awaited=True)
        return service.EndTransactionResponse(status=_OK)


_OK = definition.Status(code=Code.OK, message="OK")


def _parsed(request: Any, content: bytes, name: str, caller: _Caller | TelemetryStream) -> Any:
    """Parse a request. Raises RequestError if the bytes are no such request."""
    try:
        return request.FromString(content)
    except DecodeError:
        _log.warning("request_malformed", peer=caller.peer, request=name, bytes=len(content))
        raise RpcError(
            Code.BAD_REQUEST, f"the request is not a {request.DESCRIPTOR.name} of RocketMQ's protocol"
        ) from None
