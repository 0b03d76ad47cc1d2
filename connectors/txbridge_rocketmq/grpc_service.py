"""The gRPC protocol of RocketMQ 5's clients: a service of grpcio on the door's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from txbridge.errors import LocalProblemError
from txbridge.log import get_logger
from txbridge_rocketmq.access import AccessKey, require_group
from txbridge_rocketmq.codes import RequestError, Response, UnauthenticatedError, consumer_refusal
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
from txbridge_rocketmq.grpc_streams import Stream, Streams
from txbridge_rocketmq.sends import Stored, failed, no_answer
from txbridge_rocketmq.topics import NoAnswerError

_log = get_logger("txbridge.rocketmq")

#: A connection on which nothing comes back (ms) is dead, and its client is not asked any more: a ping after 30 s of
#: silence, 10 s to answer it.
_PING_MS, _PONG_MS = 30_000, 10_000
#: Clients ping oftener than gRPC's servers allow by default, also without a request; those of Java every 20 s.
_LEAST_PING_MS = 5_000
#: A connection without any call or stream; as the remoting door.
_IDLE_MS = 120_000
#: Messages of one request. A client sends one at a time.
_MAX_MESSAGES = 1_000
#: Requests beside the streams. Beyond it gRPC itself answers that there are too many.
_MAX_REQUESTS = 4_096
#: Calls of one connection that are not answered yet, as the remoting door.
_MAX_OPEN = 1_024

#: What is refused, and what to do instead.
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
        consumer_refusal(),
    ),
    "RecallMessage": "the txbridge door has no delayed messages, so there is none to recall",
}

#: Serves a request: it, its headers, and whose it is.
_Handler = Callable[[Any, "_Caller", AccessKey | None], Awaitable[Any]]


class _Caller:
    """Who calls, by the headers of the call."""

    def __init__(self, context: Any) -> None:
        headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        self.client_id = headers.get("x-mq-client-id", "")
        self.authorization = headers.get("authorization", "")
        self.date_time = headers.get("x-mq-date-time", "")
        self.peer = peer_of(context.peer())


class Service:
    """Belongs to the event loop."""

    def __init__(self, door: Door, *, max_streams: int) -> None:
        self._door = door
        self._setting = door.setting
        self._streams = Streams(door, max_streams)
        served: dict[str, _Handler] = {
            "QueryRoute": self._query_route,
            "Heartbeat": self._heartbeat,
            "SendMessage": self._send_message,
            "EndTransaction": self._end_transaction,
            "NotifyClientTermination": self._leave,
        }
        handlers = {}
        for method in SERVICE.methods:
            name = method.name
            request, response = getattr(service, method.input_type.name), getattr(service, method.output_type.name)
            if name in served:
                make, behaviour = grpc.unary_unary_rpc_method_handler, self._serving(name, served[name], response)
            elif name == "Telemetry":
                make, behaviour = grpc.stream_stream_rpc_method_handler, self._telemetry
            elif method.server_streaming:
                make, behaviour = grpc.unary_stream_rpc_method_handler, self._refusing(name)
            else:
                make, behaviour = grpc.unary_unary_rpc_method_handler, self._refusing(name)
            handlers[name] = make(behaviour, request.FromString, response.SerializeToString)
        self.handlers = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def close(self) -> None:
        """End all streams: their clients go to another door."""
        self._streams.end()

    # --- all calls ----------------------------------------------------------------------------------------------------

    def _serving(self, name: str, handler: _Handler, response: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def serve(request: Any, context: Any) -> Any:
            caller = _Caller(context)
            finish = self._door.begin()
            try:
                key = self._setting.access.check_rpc(caller.authorization, caller.date_time)
                answer = await handler(request, caller, key)
            except RequestError as error:
                answer = response(status=status_of(error))
            except NoAnswerError as error:
                answer = response(status=status_of(no_answer(error)))
            except Exception as error:  # noqa: BLE001  one request must not end the door
                answer = response(status=status_of(failed(name, caller.peer, error)))
            finally:
                finish()
            self._count(name, answer.status.code)
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

    def _refusing(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def refuse(_request: Any, context: Any) -> None:
            self._count(name, Code.UNSUPPORTED)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, REFUSALS.get(name, "the txbridge door does not know it"))

        return refuse

    def _count(self, name: str, code: int) -> None:
        self._door.metrics.requests.labels(name, Code.Name(code)).inc()

    # --- routes and streams -------------------------------------------------------------------------------------------

    async def _query_route(self, request: Any, _caller: _Caller, _key: AccessKey | None) -> Any:
        topic = topic_of(request.topic)
        queues = queues_of(topic, self._setting.grpc_addresses, await self._door.queues(topic))
        return service.QueryRouteResponse(status=_OK, message_queues=queues)

    async def _heartbeat(self, request: Any, caller: _Caller, _key: AccessKey | None) -> Any:
        if request.client_type != definition.PRODUCER:
            raise RpcError(Code.UNSUPPORTED, consumer_refusal())
        self._streams.alive(caller.client_id)
        return service.HeartbeatResponse(status=_OK)

    async def _leave(self, _request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        self._streams.leave(caller.client_id, key)
        return service.NotifyClientTerminationResponse(status=_OK)

    async def _telemetry(self, requests: Any, context: Any) -> None:
        caller = _Caller(context)
        try:
            key = self._setting.access.check_rpc(caller.authorization, caller.date_time)
        except UnauthenticatedError as error:
            self._count("Telemetry", Code.UNAUTHORIZED)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.remark)
        if not caller.client_id:
            self._count("Telemetry", Code.CLIENT_ID_REQUIRED)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the header x-mq-client-id is missing")
        stream = Stream(caller.client_id, key, caller.peer, self._setting.secret)
        if not self._streams.open(stream):
            self._count("Telemetry", Code.TOO_MANY_REQUESTS)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients: see --max-connections")
        reading = asyncio.create_task(self._read(stream, requests))
        try:
            while not reading.done():
                telling = asyncio.ensure_future(stream.next())
                try:
                    await asyncio.wait((telling, reading), return_when=asyncio.FIRST_COMPLETED)
                    if telling.done():
                        command = telling.result()
                        if command is None:
                            return
                        await context.write(command)
                finally:
                    telling.cancel()
            if refusal := reading.result():
                self._count("Telemetry", Code.UNSUPPORTED)
                # Some clients tell their application only that the stream has ended.
                _log.warning("consumer_refused", peer=caller.peer, client=caller.client_id)
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, refusal)
        finally:
            reading.cancel()
            self._streams.close(stream)

    async def _read(self, stream: Stream, requests: Any) -> str | None:
        """Until the client ends the stream; why the door does."""
        async for command in requests:
            if not command.HasField("settings"):
                # Answers to commands that the door does not give.
                continue
            settings = command.settings
            if settings.client_type not in {definition.PRODUCER, definition.CLIENT_TYPE_UNSPECIFIED}:
                return consumer_refusal()
            told = settings_of(settings, self._setting.limits.value)
            stream.tell(service.TelemetryCommand(status=_OK, settings=told))
            self._count("Telemetry", Code.OK)
            topics = {one.name for one in settings.publishing.topics if not one.resource_namespace}
            self._streams.add(stream, topics)
        return None

    # --- messages and decisions ---------------------------------------------------------------------------------------

    async def _send_message(self, request: Any, caller: _Caller, key: AccessKey | None) -> Any:
        messages = request.messages
        if not messages or len(messages) > _MAX_MESSAGES:
            raise RpcError(Code.BAD_REQUEST, f"a request has 1 to {_MAX_MESSAGES} messages")
        if len(messages) > 1 and any(one.system_properties.message_type == definition.TRANSACTION for one in messages):
            raise RpcError(Code.BAD_REQUEST, "a request with a transactional message has no other message")
        # All are on their way before the first is awaited, so their order is that of the request.
        answers = [self._send(one, caller, key) for one in messages]
        entries = [await one for one in answers]
        bad = next((one.status for one in entries if one.status.code != Code.OK), None)
        return service.SendMessageResponse(status=bad or _OK, entries=entries)

    def _send(self, message: Any, caller: _Caller, key: AccessKey | None) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        size = len(message.body)

        def tell(outcome: list[Stored] | RequestError) -> None:
            # A client that does not wait any more has cancelled it.
            if answer.done():
                return
            if isinstance(outcome, RequestError):
                answer.set_result(service.SendResultEntry(status=status_of(outcome)))
            else:
                (stored,) = outcome
                which = token(stored.transaction, stored.partition, stored.offset) if stored.transaction else ""
                answer.set_result(
                    service.SendResultEntry(
                        status=_OK, message_id=stored.uniq_key, transaction_id=which, offset=stored.offset
                    )
                )

        def done(outcome: list[Stored] | RequestError) -> None:
            self._door.memory.give(size)
            tell(outcome)

        try:
            send, body = send_of(message)
            require_group(key, send.group)
            if not self._door.memory.try_take(size):
                raise RequestError(Response.SYSTEM_BUSY, "too many messages wait for Kafka: send again later")  # noqa: TRY301
            try:
                self._door.sends.submit(send, body, caller.peer, done)
            except BaseException:
                self._door.memory.give(size)
                raise
            if send.is_transactional:
                self._streams.prepares(caller.client_id, send.topic)
        except RequestError as error:
            tell(error)
        return answer

    async def _end_transaction(self, request: Any, _caller: _Caller, key: AccessKey | None) -> Any:
        answer: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if not answer.done():
                answer.set_result(error)

        self._door.end(end_of(request, self._setting.secret), key, done)
        if error := await answer:
            raise error
        return service.EndTransactionResponse(status=_OK)


_OK = definition.Status(code=Code.OK, message="OK")


class Listener:
    """The server of the service. Belongs to the event loop."""

    def __init__(self, most: int) -> None:
        self._served: Service | None = None
        self._server = grpc.aio.server(
            options=[
                # Another process that listens on the same port would take half of the connections.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_FRAME),
                ("grpc.max_send_message_length", MAX_FRAME),
                ("grpc.max_concurrent_streams", _MAX_OPEN),
                ("grpc.keepalive_time_ms", _PING_MS),
                ("grpc.keepalive_timeout_ms", _PONG_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _LEAST_PING_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
            maximum_concurrent_rpcs=most + _MAX_REQUESTS,
        )

    def listen(self, host: str, port: int, pem: tuple[bytes, bytes] | None) -> int:
        """Bind a port and return it (0: any); with a key and certificate it speaks TLS. Raises LocalProblemError."""
        # Nothing: on all addresses, of both kinds.
        address = f"{host}:{port}" if host and ":" not in host else f"[{host or '::'}]:{port}"
        try:
            if pem is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, grpc.ssl_server_credentials([pem])))
        except RuntimeError as error:
            raise LocalProblemError(
                f"can not listen on port {port} of {host} for gRPC clients: {error}. Choose another with --grpc-listen"
            ) from None

    async def start(self, served: Service) -> None:
        self._served = served
        self._server.add_generic_rpc_handlers((served.handlers,))
        await self._server.start()

    async def close(self, patience: float) -> None:
        """Take no more calls, and answer those at hand (s)."""
        if self._served is not None:
            self._served.close()
        await self._server.stop(patience)
