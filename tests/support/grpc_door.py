"""The gRPC side of a front door in this process, without Kafka. The next turn of the loop acknowledges every record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import grpc
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.client_connection import ClientListener
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.door_options import DoorMetrics, DoorSetting
from txbridge_rocketmq.grpc_messages import definition, service
from txbridge_rocketmq.grpc_service import GrpcService
from txbridge_rocketmq.outlet import DecisionOutlet
from txbridge_rocketmq.topics import CheckTopics, LookUps, Topics

from txbridge.client.message import MessageLimits
from txbridge.core.names import Names

#: The only topic there is.
TOPIC = "orders"
#: Greatest size of a body (bytes).
MOST = 100_000
MEMORY = 32 * 1024 * 1024
_PATIENCE_S = 60


class _Outlet:
    def __init__(self) -> None:
        self.sent = 0

    def send_record(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
        self.sent += 1
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.set_result, (None, 0, self.sent))
        return answer


def _look(topics: Sequence[str]) -> dict[str, int]:
    return {topic: 4 if topic == TOPIC else 0 for topic in topics}


class GrpcDoor:
    """A gRPC server in a thread of its own."""

    def __init__(self, access: AccessKeys | None = None, most: int = 5_000) -> None:
        self._most = most
        self._access = access or AccessKeys()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def _start(self) -> None:
        outlet, topics, metrics = _Outlet(), Topics(_look), DoorMetrics()
        setting = DoorSetting(
            names=Names(),
            partitions=4,
            limits=MessageLimits(MOST, 3_600),
            secret=b"the secret of all doors of a test",
            addresses=("127.0.0.1:9876",),
            access=self._access,
            obstacle=lambda: "",
        )
        ends = DecisionOutlet(outlet, "END", "door")  # type: ignore[arg-type]
        self._check_topics = CheckTopics(lambda *_: False, 50)
        self.door = Door(
            setting,
            outlet,  # type: ignore[arg-type]
            ends,
            topics,
            LookUps(_look, 1),
            self._check_topics,
            lambda _group, _take, _is_unwanted: SimpleNamespace(stop=lambda: None, close=lambda _: None),
            metrics,
            memory=MEMORY,
            max_groups=50,
        )
        self._service = GrpcService(self.door, max_streams=self._most)
        self._listener = ClientListener(self._most, None)
        self.port = self._listener.listen_on("127.0.0.1", 0)
        self._listener.start(self._service.make_connection, self._service.connections)

    async def _stop(self) -> None:
        self._listener.close()
        await self._service.close(5)
        await self.door.groups.close()
        await self.door.drain_requests(5)
        self.door.close()
        self._check_topics.close()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_PATIENCE_S)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def run_soon(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def call(self, method: str, content: bytes, metadata: tuple[tuple[str, str | bytes], ...] = ()) -> bytes:
        """Make a call with any bytes as its request, and return the bytes of its response. Raises grpc.RpcError."""
        call = self.channel.unary_unary(path_of(method))
        answer: bytes = call(content, timeout=_PATIENCE_S, metadata=metadata)
        return answer

    def serves(self) -> bool:
        """Whether the door serves a client that makes no error."""
        told = service.SendMessageResponse.FromString(self.call("SendMessage", sending().SerializeToString()))
        return bool(told.status.code == definition.Code.OK)


def path_of(method: str) -> str:
    return f"/apache.rocketmq.v2.MessagingService/{method}"


def sending(**changed: Any) -> Any:
    """A valid request."""
    system = definition.SystemProperties(message_id="01AB", message_type=definition.TRANSACTION, tag="a", keys=["k"])
    message = definition.Message(
        topic=definition.Resource(name=TOPIC), user_properties={"p": "v"}, system_properties=system, body=b"body"
    )
    for name, value in changed.items():
        setattr(message if name == "body" else message.system_properties, name, value)
    return service.SendMessageRequest(messages=[message])


def settings(*topics: str, client_type: int = definition.PRODUCER) -> Any:
    """The settings with which a producer begins its stream."""
    publishing = definition.Publishing(topics=[definition.Resource(name=one) for one in topics])
    return service.TelemetryCommand(settings=definition.Settings(client_type=client_type, publishing=publishing))
