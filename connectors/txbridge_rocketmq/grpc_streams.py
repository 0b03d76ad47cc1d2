"""Telemetry streams: the clients of gRPC that can be asked about their transactions, for as long as a stream lasts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from txbridge.core.names import short_id
from txbridge.log import get_logger
from txbridge_rocketmq import identity
from txbridge_rocketmq.access import AccessKey
from txbridge_rocketmq.codes import RequestError
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.groups import Question
from txbridge_rocketmq.grpc_messages import orphan_of

#: Commands for a client that does not take them. Behind them another client of the group is asked.
_MAX_WAITING = 256
#: Topics of one client: more are no producer but an attack.
_MAX_TOPICS = 1_000
#: Topics of clients that have sent a transaction and have no stream yet; the oldest client is forgotten first.
_MAX_EARLY = 10_000

_log = get_logger("txbridge.rocketmq")


class Stream:
    """One client's telemetry stream. Belongs to the event loop."""

    def __init__(self, client_id: str, key: AccessKey | None, peer: str, secret: bytes) -> None:
        self.client_id = client_id
        self.key = key
        #: Topics that its producer has named or sent a transaction to; as with RocketMQ's proxy they are its groups.
        self.topics: set[str] = set()
        self.groups: frozenset[str] = frozenset()
        self.peer = peer
        self._secret = secret
        self._waiting: asyncio.Queue[object] = asyncio.Queue(_MAX_WAITING)

    @property
    def takes_checks(self) -> bool:
        return not self._waiting.full()

    def check(self, question: Question) -> None:
        transaction = identity.transaction_id(self._secret, question.group, question.uniq_key)
        self.tell(orphan_of(question, transaction))

    def tell(self, command: object) -> None:
        """Give the client a command, unless it takes none."""
        if not self._waiting.full():
            self._waiting.put_nowait(command)

    def end(self) -> None:
        """The door ends it, once the client has been told what waits."""
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    async def next(self) -> object:
        """What the client is to be told next; None at the end."""
        return await self._waiting.get()


class Streams:
    """All of a door."""

    def __init__(self, door: Door, most: int) -> None:
        self._door = door
        self._most = most
        self._streams: dict[str, list[Stream]] = {}
        self._count = 0
        self._early: OrderedDict[str, set[str]] = OrderedDict()
        self._early_topics = 0

    def open(self, stream: Stream) -> bool:
        """Whether there is room for one more."""
        if self._count >= self._most:
            _log.warning("stream_refused", most=self._most)
            return False
        self._streams.setdefault(stream.client_id, []).append(stream)
        self._count += 1
        self._door.metrics.streams.set(self._count)
        if early := self._early.pop(stream.client_id, None):
            self._early_topics -= len(early)
            self.add(stream, early)
        return True

    def close(self, stream: Stream) -> None:
        of_client = self._streams[stream.client_id]
        of_client.remove(stream)
        if not of_client:
            del self._streams[stream.client_id]
        self._count -= 1
        self._door.metrics.streams.set(self._count)
        self._door.groups.drop(stream)

    def add(self, stream: Stream, topics: set[str]) -> None:
        """The client has named these topics, besides those before."""
        stream.topics |= set(sorted(topics)[: max(0, _MAX_TOPICS - len(stream.topics))])
        self._introduce(stream)

    def prepares(self, client_id: str, topic: str) -> None:
        """The client sends a half message: it is to be asked, also when it had not named the topic before."""
        of_client = self._streams.get(client_id)
        if of_client is None:
            early = self._early.setdefault(client_id, set())
            self._early_topics += topic not in early
            early.add(topic)
            while self._early_topics > _MAX_EARLY:
                self._early_topics -= len(self._early.popitem(last=False)[1])
        else:
            for stream in of_client:
                if topic not in stream.topics:
                    self.add(stream, {topic})

    def alive(self, client_id: str) -> None:
        """A heartbeat: another door may have made the check topic of one of its groups."""
        for stream in self._streams.get(client_id, ()):
            self._introduce(stream)

    def leave(self, client_id: str, key: AccessKey | None) -> None:
        """The client has said good-bye. Its name is what it says; what it may not say for others is told by its key."""
        for stream in self._streams.get(client_id, ()):
            if stream.key is key:
                self._door.groups.drop(stream)
                stream.topics.clear()

    def end(self) -> None:
        """The door ends all."""
        for of_client in self._streams.values():
            for stream in of_client:
                stream.end()

    def _introduce(self, stream: Stream) -> None:
        try:
            self._door.introduce(stream, stream.topics, stream.key)
        except RequestError as error:
            # It sends to these topics, if at all, without transactions: that is where it is told.
            _log.debug("topic_not_joined", client=short_id(stream.client_id), remark=error.remark)
