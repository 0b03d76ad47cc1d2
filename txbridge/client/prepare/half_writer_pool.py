"""The writers of half messages of a client: how long one waits for company in librdkafka is a setting of a producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from txbridge.client.prepare.half_writer import HalfWriter
from txbridge.client.prepare.report_poller import join


class Company(Enum):
    """How long half messages wait for others (ms), so that they share a request.

    librdkafka has one batch of a partition on its way at a time when it is idempotent, and asks all the while, without
    a pause, whether the next may go if that one has waited for its linger: up to a whole processor, when many come
    while one is on its way and the linger is shorter than the way there and back.
    """

    # Members are unique. Enum hashes their names, in Python, and a writer is looked up for every message.
    __hash__ = object.__hash__

    #: Few callers wait, each for its own: hardly anybody would come.
    NOBODY = 0
    #: Many callers wait, each for its own: half of the time that Kafka takes, so that those whose messages were
    #: acknowledged together meet again.
    CALLERS = 0.5
    #: Nobody waits for a single one: the default of Kafka's own producer (KIP-1030).
    MANY = 5


#: Of the writers for nobody each takes so many half messages at a time, if another one may take the next: librdkafka
#: sends at once while fewer than five of a partition are on their way, and spins while one waits behind five. One less,
#: because several threads choose at the same moment.
_AT_ONCE = 4
#: So many writers for nobody at most, each with a connection and threads of librdkafka: enough for all that come before
#: company is worth waiting for.
_MOST_FOR_NOBODY = 4


class HalfWriters:
    """Makes each writer when it is needed first; thread-safe.

    `new` makes one from its linger (ms) and the name of its thread.
    """

    def __init__(self, new: Callable[[float, str], HalfWriter]) -> None:
        self._new = new
        #: Held while a writer is made.
        self._lock = threading.Lock()
        self._closed = False
        #: Threads that make a writer, by its name. Its own lock is held for a moment only.
        self._making: dict[str, threading.Thread] = {}
        self._guard = threading.Lock()
        #: Those for nobody are more than one where one of them does not suffice.
        self._for_nobody = [new(Company.NOBODY.value, "half")]
        self._writers: dict[Company, HalfWriter] = {}
        #: Also one whose start was interrupted by a signal.
        self._begun = list(self._for_nobody)

    def start(self) -> None:
        self._for_nobody[0].start()

    def of(self, company: Company, *, waits: bool = True) -> HalfWriter:
        """The writer for this company; after close one that refuses.

        When it is to be made and connected first, who does not wait gets the one for nobody meanwhile.
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
        """The first that has room; when none has, the one that has least to do."""
        for writer in self._for_nobody:
            if writer.on_their_way < _AT_ONCE:
                return writer
        if len(self._for_nobody) < _MOST_FOR_NOBODY:
            self._make_soon(Company.NOBODY)
        return min(self._for_nobody, key=lambda writer: writer.on_their_way)

    def _make_soon(self, company: Company) -> None:
        """In a thread, once."""
        with self._guard:
            name = self._name_of_next(company)
            if name not in self._making and not self._closed:
                thread = threading.Thread(target=self._made, args=[company], name="txbridge-half-new", daemon=True)
                self._making[name] = thread
                thread.start()

    def _name_of_next(self, company: Company) -> str:
        """Of the thread of the next writer for this company."""
        return f"half-{len(self._for_nobody) + 1 if company is Company.NOBODY else company.name.lower()}"

    def is_served_here(self) -> bool:
        """See HalfWriter.is_served_here."""
        return any(writer.is_served_here() for writer in (*self._for_nobody, *self._writers.values()))

    def close(self) -> None:
        """What is not acknowledged by now fails. May be called again."""
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
                # Nobody would end another one.
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
