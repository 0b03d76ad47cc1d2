"""aiokafka's client, for requests that librdkafka does not have, and for requests to one particular broker.

librdkafka chooses the broker of a request itself: any one, or the one that it takes for the leader. aiokafka, which is
installed for Faust, can send a request to a given broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiokafka.client import AIOKafkaClient

from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.config import BOOTSTRAP_SERVERS
from txbridge.kafka.log import without_aiokafka


def aiokafka_client(kafka: Mapping[str, Any], purpose: str, request_timeout_s: float) -> AIOKafkaClient:
    """Create a client that has not connected yet; its client.id is txbridge-PURPOSE. Call it within `aiokafka_runner`.

    `kafka` are librdkafka's properties. Raises UsageError for those that aiokafka cannot use. Do not cancel its
    `bootstrap`, which then leaves a connection open: its time limits bound it.
    """
    return AIOKafkaClient(
        bootstrap_servers=kafka[BOOTSTRAP_SERVERS],
        client_id=f"txbridge-{purpose}",
        request_timeout_ms=round(request_timeout_s * 1000),
        **aiokafka_auth(kafka),
    )


@contextmanager
def aiokafka_runner() -> Iterator[asyncio.Runner]:
    """Run the requests of clients, without aiokafka's log lines. Its end ends all their connections at once.

    aiokafka's own `close` leaves out connections that it has given up, and waits for up to 30 s until a broker has
    answered the end of TLS. Here nothing is lost: each request has its answer, or nobody waits for it any more.
    """
    loop = _RequestLoop()
    with without_aiokafka(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            yield runner
        finally:
            runner.run(loop.abort_connections())


class _RequestLoop(asyncio.SelectorEventLoop):
    """An event loop that knows the connections which are open in it, also when their opening was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[Any, asyncio.Transport] = {}

    async def create_connection(self, protocol_factory: Callable[[], Any], *arguments: Any, **keywords: Any) -> Any:
        def make_protocol() -> Any:
            protocol = protocol_factory()
            on_connection, on_end = protocol.connection_made, protocol.connection_lost

            def connection_made(transport: asyncio.Transport) -> None:
                self._opened[protocol] = transport
                on_connection(transport)

            def connection_lost(error: Exception | None) -> None:
                self._opened.pop(protocol, None)
                on_end(error)

            # Noting what `create_connection` returns is not enough. A caller that is cancelled right after the TLS
            # handshake gets no transport, and asyncio then waits for the broker to close its side.
            protocol.connection_made, protocol.connection_lost = connection_made, connection_lost
            return protocol

        return await super().create_connection(make_protocol, *arguments, **keywords)

    async def abort_connections(self) -> None:
        # Tasks end first, because they may still open connections: aiokafka fetches metadata in one of its own.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for transport in list(self._opened.values()):
            transport.abort()
        # One turn ends the connections, the next one tells their readers.
        for _ in range(2):
            await asyncio.sleep(0)
