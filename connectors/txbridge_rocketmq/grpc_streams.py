"""Telemetry streams. A gRPC client can be asked about its transactions as long as its stream lasts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from txbridge.core.names import short_id
from txbridge.log import get_logger
from txbridge_rocketmq.access import AccessKey
from txbridge_rocketmq.codes import RequestError
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.grpc_call import GrpcCall
from txbridge_rocketmq.grpc_messages import orphan_of

#: Maximum of topics of one client. No producer has more; that would be an attack.
_MAX_TOPICS = 1_000
#: Topics of clients that have sent a transaction and have no stream yet. The oldest client is dropped first.
_MAX_EARLY = 10_000

_log = get_logger("txbridge.rocketmq")

#: A client's id, and the address of its connection. Two clients may have the same id: that of Rust is made of host,
#: process id and a counter, which are equal in two containers. And a process may have one connection for all clients.
ConnectedClient = tuple[str, str]


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
