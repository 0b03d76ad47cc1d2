"""Writers of half messages of a client. It has several, because the linger is a setting of a librdkafka producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from txbridge.client.base.threads import join
from txbridge.client.prepare.half_writer import HalfWriter


class Company(Enum):
    """Linger (ms): the time that half messages wait for others, to share a request.

    An idempotent librdkafka producer limits the batches of a partition in flight. Once the next batch has waited for
    its linger, the producer asks without a pause whether it may go. This takes up to a whole processor, when many
    messages come while batches are in flight and the linger is shorter than the round trip.
    """

    # Members are unique, so identity is enough. Enum hashes their names, in Python code, for every message.
    __hash__ = object.__hash__

    #: Few callers wait, each for its own message. Hardly any other message would come.
    NOBODY = 0
    #: Many callers wait, each for its own message. Half of the time that Kafka takes, so that callers whose messages
    #: were acknowledged together share a request again.
    CALLERS = 0.5
    #: No caller waits for a single message. The default of Kafka's own producer (KIP-1030).
    MANY = 5


#: Most half messages in flight of a writer for NOBODY, if another one may take the next. A librdkafka producer sends at
#: once while fewer than five of a partition are in flight, and spins while one waits behind five. One less, because
#: several threads choose at the same moment.
_AT_ONCE = 4
#: Most writers for NOBODY, each with a connection and threads of librdkafka. They are enough for all half messages that
#: come before it is worth waiting for others.
_MOST_FOR_NOBODY = 4
#: Most writers of a client: those for NOBODY, and one for each other company.
MOST_WRITERS = _MOST_FOR_NOBODY + len(Company) - 1


class HalfWriters:
    """Writers of half messages, each of them made when it is first needed; thread-safe.

    `new` makes a writer from its linger (ms) and the name of its thread.
    """

    def __init__(self, new: Callable[[float, str], HalfWriter]) -> None:
        self._new = new
        #: Held while a writer is made.
        self._lock = threading.Lock()
        self._closed = False
        #: Threads that make a writer, by the writer's name. `_guard` is held only for a moment.
        self._making: dict[str, threading.Thread] = {}
        self._guard = threading.Lock()
        #: Writers for NOBODY. More are made when one does not suffice.
        self._for_nobody = [new(Company.NOBODY.value, "half")]
        self._writers: dict[Company, HalfWriter] = {}
        #: All writers, also one whose start was interrupted by a signal.
        self._begun = list(self._for_nobody)

    def start(self) -> None:
        self._for_nobody[0].start()

    def of(self, company: Company, *, waits: bool = True) -> HalfWriter:
        """Return the writer for this company; after close one that refuses.

        If the writer must be made and connected first, a caller that does not wait gets the first one for NOBODY.
        """
        if company is Company.NOBODY:
            return self._of_nobody()
        writer = self._writers.get(company)
        if writer is not None:
            return writer
        if waits:
            return self._made(company)
        self._make_soon(company)
        return self._for_nobody[0]

    def _of_nobody(self) -> HalfWriter:
        """Return the first writer with room. If none has room, the one with the fewest messages in flight."""
        for writer in self._for_nobody:
            if writer.on_their_way < _AT_ONCE:
                return writer
        if len(self._for_nobody) < _MOST_FOR_NOBODY:
            self._make_soon(Company.NOBODY)
        return min(self._for_nobody, key=lambda writer: writer.on_their_way)

    def _make_soon(self, company: Company) -> None:
        """Make a writer in a thread, once."""
        with self._guard:
            name = self._name_of_next(company)
            if name not in self._making and not self._closed:
                thread = threading.Thread(target=self._made, args=[company], name="txbridge-half-new", daemon=True)
                self._making[name] = thread
                thread.start()

    def _name_of_next(self, company: Company) -> str:
        """Return the name of the next writer's thread for this company."""
        return f"half-{len(self._for_nobody) + 1 if company is Company.NOBODY else company.name.lower()}"

    def is_served_here(self) -> bool:
        """See HalfWriter.is_served_here."""
        return any(writer.is_served_here() for writer in (*self._for_nobody, *self._writers.values()))

    def close(self) -> None:
        """Fail half messages that are not acknowledged by now. May be called again."""
        with self._guard:
            self._closed = True
        for thread in self._making.values():
            join(thread)
        with self._lock:
            for writer in self._begun:
                writer.close()

    def _made(self, company: Company) -> HalfWriter:
        with self._lock:
            if self._closed:
                # Nobody would close another one.
                return self._for_nobody[0]
            if company in self._writers:
                return self._writers[company]
            writer = self._new(company.value, self._name_of_next(company))
            self._begun.append(writer)
            writer.start()
            if company is Company.NOBODY:
                self._for_nobody.append(writer)
            else:
                self._writers[company] = writer
            return writer
