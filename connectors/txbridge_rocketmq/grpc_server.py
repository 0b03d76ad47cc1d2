"""Listener of the gRPC protocol."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from txbridge_rocketmq.client_listener import ClientListener
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.grpc_service import TELEMETRY_PATH, GrpcService
from txbridge_rocketmq.http2_connection import Http2Connection
from txbridge_rocketmq.watched_files import Certificate

#: Bytes of a request beside the body of its message, for properties and other fields.
_MORE_THAN_BODY = 256 * 1024
#: Minimum of the size limit of a request, in bytes: gRPC's own default.
_LEAST_MESSAGE = 4 * 1024 * 1024
#: Seconds between two looks whether all calls are answered, at the end.
_LOOK_S = 0.02


class GrpcServer:
    """Listener of the gRPC protocol, for the event loop only."""

    def __init__(self, most: int, max_body: int, tls: Certificate | None) -> None:
        self._most = most
        self._max_message = max(_LEAST_MESSAGE, max_body + _MORE_THAN_BODY)
        self._listener = ClientListener(most, tls, "--grpc-listen", needs_tls=tls is not None)
        self._connections: set[Http2Connection] = set()
        self._service: GrpcService | None = None

    def listen_on(self, host: str, port: int) -> int:
        """Bind a port and return it (0: any). Raises LocalProblemError."""
        return self._listener.listen_on(host, port)

    def start(self, door: Door) -> None:
        served = self._service = GrpcService(door, max_streams=self._most)
        make = partial(
            Http2Connection,
            door.memory,
            self._max_message,
            self._connections,
            TELEMETRY_PATH,
            served.begin_call,
            served.count_late,
        )
        self._listener.start(make, self._connections)

    async def close(self, patience: float) -> None:
        """Take no more calls, and wait up to `patience` seconds for the open ones."""
        self._listener.close()
        for one in self._connections:
            one.stop_calls()
        if self._service is not None:
            self._service.close()
        until = time.monotonic() + patience
        while time.monotonic() < until and any(one.is_busy for one in self._connections):  # noqa: ASYNC110  none has an event for its last answer
            await asyncio.sleep(_LOOK_S)
        for one in list(self._connections):
            one.close()
