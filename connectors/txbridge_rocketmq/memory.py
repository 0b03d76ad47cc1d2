"""Memory for requests. It is given for bytes that have come, not for a length that a client announces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from txbridge_rocketmq.command import MAX_FRAME

#: Bytes that each connection may have received without being counted. Few requests are larger, so they never wait for
#: large ones that are still coming.
UNCOUNTED = 64 * 1024
#: Bytes that are received at a time, at most.
CHUNK = 256 * 1024
#: Bytes that a request takes beside its frame and librdkafka's copy of it: measured with frames of 350 B to 100 kB.
REQUEST_BYTES = 4_096

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """Items of owners, who take turns: who brings much waits for it alone.

    Each owner's items keep their order. An item waits once for each owner.
    """

    def __init__(self) -> None:
        self._items: OrderedDict[str, dict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add_item(self, owner: str, item: T) -> None:
        self._items.setdefault(owner, {})[item] = None

    def pop_item(self, is_ready: Callable[[T], bool] = lambda _: True) -> T | None:
        """Remove the first item of the owner whose turn it is; None if there is none, or it is not ready."""
        for owner, items in self._items.items():
            item = next(iter(items))
            if not is_ready(item):
                return None
            del items[item]
            if items:
                self._items.move_to_end(owner)
            else:
                del self._items[owner]
            return item
        return None


class Receiver(ABC):
    """A connection."""

    #: Its address.
    peer = ""

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def frame_size(self) -> int:
        """Bytes of the request that waits for memory; 0 if none does, or the connection is closed."""
        return 0

    @abstractmethod
    def handle_frame(self) -> None:
        """Go on: the request that has waited has got memory."""

    @abstractmethod
    def receive_more(self) -> None:
        """Go on to receive a large request."""


class RequestMemory:
    """Limits on the bytes of requests of all connections together, for the event loop only.

    A request that is complete takes memory, with all its copies, until it is answered. If there is none, it waits, and
    the hosts take turns.

    Requests that are still coming have a part of their own, because nobody has proven yet who sends them: a quarter, or
    one largest frame if that is more. One host may have half of that. Beyond it, reading pauses. One of these requests
    goes on nevertheless, and room for one largest frame is kept for it: otherwise all might wait for each other's end.
    It is one of the host that holds least, so a host with many requests that stand still delays others by one of them.
    """

    def __init__(self, limit: int) -> None:
        #: Where all connections receive. They take the bytes away at once.
        self.chunk = memoryview(bytearray(CHUNK))
        coming = max(limit // 4, min(MAX_FRAME, limit // 2))
        self._answering_limit = limit - coming
        self._coming_limit = max(0, coming - MAX_FRAME)
        self._host_limit = coming // 2
        self._answering = 0
        self._waiting: TurnQueue[Receiver] = TurnQueue()
        #: Counted bytes of requests that are coming: by connection, and by host.
        self._coming: dict[Receiver, int] = {}
        self._by_host: Counter[str] = Counter()
        self._received = 0
        #: The connection that goes on for one request without other limits.
        self._first: Receiver | None = None
        #: Connections that wait until they may receive more.
        self._paused: dict[Receiver, None] = {}

    @property
    def used(self) -> int:
        """Counted bytes of all requests."""
        return self._answering + self._received

    def take_memory(self, connection: Receiver) -> bool:
        """Take memory for a complete request; whether there is room. If not, `handle_frame` is called later."""
        if self._waiting or not self.try_take_memory(connection.frame_size):
            self._waiting.add_item(connection.host, connection)
            return False
        return True

    def try_take_memory(self, size: int) -> bool:
        """Take memory if there is room, without waiting; whether there is. A single request always finds room."""
        taken = size and 2 * size + REQUEST_BYTES
        if self._answering and self._answering + taken > self._answering_limit:
            return False
        self._answering += taken
        return True

    def give_back(self, size: int) -> None:
        """Give memory back that was taken."""
        self._answering -= size and 2 * size + REQUEST_BYTES
        # One that is closed has no frame any more, which always fits.
        while (one := self._waiting.pop_item(lambda one: self.try_take_memory(one.frame_size))) is not None:
            one.handle_frame()

    def is_needed(self, connection: Receiver) -> bool:
        """Whether this connection holds memory, and another one waits until it may receive more."""
        return bool(self._paused) and connection in self._coming

    def count_received(self, connection: Receiver, received: int) -> None:
        """Set the bytes that a connection has received and not handed on yet."""
        counted, before = max(0, received - UNCOUNTED), self._coming.get(connection, 0)
        if counted == before:
            return
        self._received += counted - before
        self._by_host[connection.host] += counted - before
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        if counted:
            self._coming[connection] = counted
        else:
            del self._coming[connection]
        if counted < before:
            if connection is self._first:
                self._first = None
            self._resume_paused()

    def may_receive(self, connection: Receiver) -> bool:
        """Whether a connection may receive more. If not, `receive_more` is called later."""
        if self._may_go_on(connection, Counter()):
            return True
        self._paused[connection] = None
        return False

    def forget_connection(self, connection: Receiver) -> None:
        """Forget a closed connection, with all that it has received."""
        self._paused.pop(connection, None)
        self.count_received(connection, 0)

    def _may_go_on(self, connection: Receiver, resumed: Counter[str]) -> bool:
        """Whether there is room beside what the connections that were `resumed` receive first, counted by host."""
        if connection not in self._coming or connection is self._first:
            return True
        host = connection.host
        has_room = self._received + resumed.total() * CHUNK < self._coming_limit
        if has_room and self._by_host[host] + resumed[host] * CHUNK < self._host_limit:
            return True
        if self._first is None:
            self._first = connection
        return self._first is connection

    def _resume_paused(self) -> None:
        resumed: Counter[str] = Counter()
        for connection in sorted(self._paused, key=lambda one: self._by_host[one.host]):
            if self._may_go_on(connection, resumed):
                resumed[connection.host] += 1
                del self._paused[connection]
                connection.receive_more()
