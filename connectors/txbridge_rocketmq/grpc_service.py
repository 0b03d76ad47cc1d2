"""The gRPC protocol of RocketMQ 5's clients: a service of grpcio on the door's event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from txbridge.errors import LocalProblemError
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
from txbridge_rocketmq.command import MAX_FRAME
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.grpc_messages import (
    Code,
    RpcError,
    end_of,
    peer_of,
    queues_of,
    send_of,
    settings_of,
    status_of,
    token,
    topic_of,
)
from txbridge_rocketmq.grpc_protocol import SERVICE, definition, service
from txbridge_rocketmq.grpc_streams import ConnectedClient, TelemetryStream, TelemetryStreams
from txbridge_rocketmq.requests import SendRequest
from txbridge_rocketmq.sends import StoredRecord, as_request_error

_log = get_logger("txbridge.rocketmq")

#: The door sends a ping after 30 s of silence, and waits 10 s for the answer (ms). Without it the connection is dead,
#: and its client is not asked any more.
_PING_MS, _PONG_MS = 30_000, 10_000
#: Shortest interval of a client's pings (ms). Clients ping more often than gRPC's servers allow by default, also
#: without a request; those of Java every 20 s.
_LEAST_PING_MS = 5_000
#: A connection without any call or stream is closed after this time (ms), as in the remoting protocol.
_IDLE_MS = 120_000
#: A request must arrive within this time (s) after the start of its call, as a frame of the remoting protocol.
_REQUEST_S = 30.0
#: Calls of a host whose requests have not come. Each one more has a second, because all hosts share the places for
#: calls. A request mostly comes with its call; only large ones on slow lines take longer.
_MAX_UNRECEIVED, _SHORT_REQUEST_S = 256, 1.0
#: Longest client id. Clients make it of host, process and counters: some 60 characters.
_LONGEST_CLIENT_ID = 255
#: Bytes of a request beside the body of its message, for properties and other fields.
_MORE_THAN_BODY = 256 * 1024
#: Minimum of the size limit of a request, in bytes: gRPC's own default.
_LEAST_MESSAGE = 4 * 1024 * 1024
#: Seconds between two tests whether the door's own port is open, and the time-out of such a connection.
_LOOK_S, _CONNECT_S = 1.0, 5.0
#: Maximum of messages in one request. A client sends one at a time.
_MAX_MESSAGES = 1_000
#: Maximum of requests beside the streams. Beyond it gRPC itself answers that there are too many.
_MAX_REQUESTS = 4_096
#: Maximum of unanswered calls of one connection, as in the remoting protocol.
_MAX_OPEN = 1_024

#: Refused calls, with what to do instead.
REFUSALS: dict[str, str] = {
    **dict.fromkeys(
        (
            "QueryAssignment",
            "ReceiveMessage",
            "AckMessage",
            "ForwardMessageToDeadLetterQueue",
            "PullMessage",
            "UpdateOffset",
            "GetOffset",
            "QueryOffset",
            "ChangeInvisibleDuration",
            "SyncLiteSubscription",
        ),
        CONSUMER_REFUSAL,
    ),
    "RecallMessage": refusal(RequestCode.RECALL_MESSAGE),
}

#: Serves a request. Takes the request, the caller, and the caller's access key.
_Handler = Callable[[Any, "_Caller", AccessKey | None], Awaitable[Any]]


class _Caller:
    """The client of a call, from the headers of the call."""

    def __init__(self, context: Any) -> None:
        headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        client_id = headers.get("x-mq-client-id", "")
        self.client_id = client_id if len(client_id) <= _LONGEST_CLIENT_ID else ""
        self.authorization = headers.get("authorization", "")
        self.date_time = headers.get("x-mq-date-time", "")
        self.peer = peer_of(context.peer())
        self.client: ConnectedClient = (self.client_id, self.peer)


class GrpcService:
    """The gRPC service of a door, for the event loop only."""

    def __init__(self, door: Door, *, max_streams: int) -> None:
        self._door = door
        self._setting = door.setting
        self._streams = TelemetryStreams(door, max_streams)
        self._unreceived: Counter[str] = Counter()
        served: dict[str, _Handler] = {
            "QueryRoute": self._query_route,
            "Heartbeat": self._answer_heartbeat,
            "SendMessage": self._send_message,
            "EndTransaction": self._end_transaction,
            "NotifyClientTermination": self._answer_termination,
        }
        handlers = {}
        for method in SERVICE.methods:
            name = method.name
            request, response = getattr(service, method.input_type.name), getattr(service, method.output_type.name)
            if name in served:
                # As a stream of one request, so that reading its bytes can have a time limit.
                make, behaviour = (
                    grpc.stream_unary_rpc_method_handler,
                    self._handler_of(name, served[name], request, response),
                )
            elif name == "Telemetry":
                make, behaviour = grpc.stream_stream_rpc_method_handler, self._serve_telemetry
            elif method.server_streaming:
                make, behaviour = grpc.unary_stream_rpc_method_handler, self._refusal_of(name)
            else:
                make, behaviour = grpc.unary_unary_rpc_method_handler, self._refusal_of(name)
            # Without a deserializer: gRPC would log a trace for malformed bytes. The handlers refuse them.
            handlers[name] = make(behaviour, None, response.SerializeToString)
        self.handlers = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def close(self) -> None:
        """End all streams: their clients go to another door."""
        self._streams.end_streams()

    # --- all calls ----------------------------------------------------------------------------------------------------

    def _handler_of(
        self, name: str, handler: _Handler, request: Any, response: Any
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def serve(requests: Any, context: Any) -> Any:
            caller = _Caller(context)
            content = await self._receive_request(name, requests, caller)
            if content is None:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no request came in time")
                return None
            try:
                key = self._setting.access.check_rpc(caller.authorization, caller.date_time, caller.peer)
                answer = await handler(_parsed(request, content, name, caller), caller, key)
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
            return answer

        return serve

    async def _receive_request(self, name: str, requests: Any, caller: _Caller) -> bytes | None:
        """The bytes of the one request of a call; None if they do not arrive."""
        host = caller.peer.rpartition(":")[0]
        is_crowded = self._unreceived[host] >= _MAX_UNRECEIVED
        self._unreceived[host] += 1
        try:
            async with asyncio.timeout(_SHORT_REQUEST_S if is_crowded else _REQUEST_S):
                return cast(bytes, await anext(aiter(requests)))
        except (TimeoutError, StopAsyncIteration):
            self._count_answer(name, Code.REQUEST_TIMEOUT)
            _log.warning("request_not_received", peer=caller.peer, request=name)
            return None
        finally:
            self._unreceived[host] -= 1
            if not self._unreceived[host]:
                del self._unreceived[host]

    def _refusal_of(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def refuse(_request: Any, context: Any) -> None:
            self._count_answer(name, Code.UNSUPPORTED)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, REFUSALS.get(name, "the txbridge door does not know it"))

        return refuse

    def _count_answer(self, name: str, code: int) -> None:
        self._door.metrics.requests.labels(name, Code.Name(code)).inc()

    # --- routes and streams -------------------------------------------------------------------------------------------

    async def _query_route(self, request: Any, caller: _Caller, _key: AccessKey | None) -> Any:
        topic = topic_of(request.topic)
        queues = queues_of(topic, request.endpoints, await self._door.count_queues(topic, caller.peer))
        return service.QueryRouteResponse(status=_OK, message_queues=queues)

    async def _answer_heartbeat(self, request: Any, caller: _Caller, _key: AccessKey | None) -> Any:
        if request.client_type != definition.PRODUCER:
            raise RpcError(Code.UNSUPPORTED, CONSUMER_REFUSAL)
        self._streams.note_heartbeat(caller.client)
        return service.HeartbeatResponse(status=_OK)

    async def _answer_termination(self, _request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        self._streams.leave_groups(caller.client, key)
        return service.NotifyClientTerminationResponse(status=_OK)

    async def _serve_telemetry(self, requests: Any, context: Any) -> None:
        caller = _Caller(context)
        try:
            key = self._setting.access.check_rpc(caller.authorization, caller.date_time, caller.peer)
        except UnauthenticatedError as error:
            self._count_answer("Telemetry", Code.UNAUTHORIZED)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.remark)
        if not caller.client_id:
            self._count_answer("Telemetry", Code.CLIENT_ID_REQUIRED)
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the header x-mq-client-id is missing, or has more than {_LONGEST_CLIENT_ID} characters",
            )
        stream = TelemetryStream(caller.client, key)
        if not self._streams.add_stream(stream):
            self._count_answer("Telemetry", Code.TOO_MANY_REQUESTS)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients: see --max-connections")
        reading = asyncio.create_task(self._read_stream(stream, requests))
        try:
            while not reading.done():
                telling = asyncio.ensure_future(stream.next_command())
                try:
                    await asyncio.wait((telling, reading), return_when=asyncio.FIRST_COMPLETED)
                    if telling.done():
                        command = telling.result()
                        if command is None:
                            return
                        await context.write(command)
                finally:
                    telling.cancel()
            try:
                refusal = reading.result()
            except RequestError as error:
                self._count_answer("Telemetry", Code.BAD_REQUEST)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.remark)
            if refusal:
                self._count_answer("Telemetry", Code.UNSUPPORTED)
                # Some clients tell their application only that the stream has ended.
                _log.warning("consumer_refused", peer=caller.peer, client=caller.client_id)
                # At its start the client of Node waits for settings or a status, also when the stream has failed.
                status = definition.Status(code=Code.UNSUPPORTED, message=refusal)
                await context.write(service.TelemetryCommand(status=status))
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, refusal)
        finally:
            reading.cancel()
            self._streams.remove_stream(stream)

    async def _read_stream(self, stream: TelemetryStream, requests: Any) -> str | None:
        """Read the stream until the client ends it. If the door has to end it, return the reason."""
        async for content in requests:
            command = _parsed(service.TelemetryCommand, content, "Telemetry", stream)
            if not command.HasField("settings"):
                # An answer to a command that the door never sends.
                continue
            settings = command.settings
            if settings.client_type not in {definition.PRODUCER, definition.CLIENT_TYPE_UNSPECIFIED}:
                return CONSUMER_REFUSAL
            told = settings_of(settings, self._setting.limits.value)
            stream.queue_command(service.TelemetryCommand(status=_OK, settings=told))
            self._count_answer("Telemetry", Code.OK)
            topics = {one.name for one in settings.publishing.topics if not one.resource_namespace}
            self._streams.add_topics(stream, topics)
        return None

    # --- messages and decisions ---------------------------------------------------------------------------------------

    async def _send_message(self, request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        messages = request.messages
        if not messages or len(messages) > _MAX_MESSAGES:
            raise RpcError(Code.BAD_REQUEST, f"a request must have 1 to {_MAX_MESSAGES} messages")
        if len(messages) > 1 and any(one.system_properties.message_type == definition.TRANSACTION for one in messages):
            raise RpcError(Code.BAD_REQUEST, "a transactional message must be the only one in its request")
        # All are sent before the first is awaited, so that they keep the order of the request. They are tasks of the
        # door, because a client that cancels its call must not stop them halfway.
        sending = [self._door.spawn_task(self._answer_message(one, caller, key)) for one in messages]
        entries = [await asyncio.shield(one) for one in sending]
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
        await self._door.send_decision(end_of(request, self._setting.secret), key)
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


class GrpcServer:
    """The server of the service, for the event loop only."""

    def __init__(self, most: int, max_body: int) -> None:
        self._served: GrpcService | None = None
        self._most = most
        self._max_message = max(_LEAST_MESSAGE, max_body + _MORE_THAN_BODY)
        self._server = self._make_server()
        self._place: tuple[str, tuple[bytes, bytes] | None] = ("", None)
        self._watching: asyncio.Task[None] | None = None

    def _make_server(self) -> Any:
        return grpc.aio.server(
            options=[
                # Otherwise another process could listen on the same port and take half of the connections.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._max_message),
                ("grpc.max_send_message_length", MAX_FRAME),
                ("grpc.max_concurrent_streams", _MAX_OPEN),
                ("grpc.keepalive_time_ms", _PING_MS),
                ("grpc.keepalive_timeout_ms", _PONG_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _LEAST_PING_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
            maximum_concurrent_rpcs=self._most + _MAX_REQUESTS,
        )

    def listen_on(self, host: str, port: int, pem: tuple[bytes, bytes] | None) -> int:
        """Bind a port and return it (0: any); with a key and certificate it speaks TLS. Raises LocalProblemError."""
        # An empty host means all addresses, of IPv4 and IPv6.
        address = f"{host}:{port}" if host and ":" not in host else f"[{host or '::'}]:{port}"
        try:
            if pem is None:
                bound = int(self._server.add_insecure_port(address))
            else:
                bound = int(self._server.add_secure_port(address, grpc.ssl_server_credentials([pem])))
        except RuntimeError as error:
            raise LocalProblemError(
                f"cannot listen on port {port} of {host} for gRPC clients: {error}. Choose another with --grpc-listen"
            ) from None
        self._place, self._port = (host, pem), bound
        return bound

    async def start(self, door: Door) -> None:
        self._served = GrpcService(door, max_streams=self._most)
        await self._start_server()
        self._watching = asyncio.create_task(self._watch_port())

    async def _start_server(self) -> None:
        assert self._served is not None
        self._server.add_generic_rpc_handlers((self._served.handlers,))
        await self._server.start()

    async def _watch_port(self) -> None:
        """Begin a new server when grpcio's has ended. It ends without notice when the path of a call is not UTF-8."""
        host = self._place[0] if self._place[0] not in {"", "0.0.0.0", "::"} else "localhost"  # noqa: S104
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, self._port), _CONNECT_S)
            except ConnectionRefusedError:
                _log.error("grpc_server_ended", port=self._port, next="starting a new one; its clients reconnect")
                self._server = self._make_server()
                try:
                    self.listen_on(self._place[0], self._port, self._place[1])
                    await self._start_server()
                except LocalProblemError as error:
                    _log.error("grpc_server_not_started", error=str(error), next="trying again")
            except (OSError, TimeoutError):
                # The process has no descriptor left, or the machine is busy. That is reported elsewhere, and passes.
                continue
            else:
                writer.close()

    async def close(self, patience: float) -> None:
        """Take no more calls, and wait up to `patience` seconds for the open ones."""
        if self._watching is not None:
            self._watching.cancel()
        if self._served is not None:
            self._served.close()
        await self._server.stop(patience)
