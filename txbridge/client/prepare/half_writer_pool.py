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

    #: One caller waits for its own: nobody would come.
    NOBODY = 0
    #: Many callers wait, each for its own: half of the time that Kafka takes, so that those whose messages were
    #: acknowledged together meet again.
    CALLERS = 0.5
    #: Nobody waits for a single one: the default of Kafka's own producer (KIP-1030).
    MANY = 5


class HalfWriters:
    """Makes each writer when it is needed first; thread-safe.

    `new` makes one from its linger (ms) and the name of its thread.
    """

    def __init__(self, new: Callable[[float, str], HalfWriter]) -> None:
        self._new = new
        #: Held while a writer is made.
        self._lock = threading.Lock()
        self._closed = False
        #: Threads that make a writer, by what it is for. Its own lock is held for a moment only.
        self._making: dict[Company, threading.Thread] = {}
        self._guard = threading.Lock()
        self._writers = {Company.NOBODY: new(Company.NOBODY.value, "half")}
        #: Also one whose start was interrupted by a signal.
        self._begun = list(self._writers.values())

    def start(self) -> None:
        self._writers[Company.NOBODY].start()

    def of(self, company: Company, *, waits: bool = True) -> HalfWriter:
        """The writer for this company; after close one that refuses.

        When it is to be made and connected first, who does not wait gets the one for nobody meanwhile.
        """
        writer = self._writers.get(company)
        if writer is not None:
            return writer
        if waits:
            return self._made(company)
        with self._guard:
            if company not in self._making and not self._closed:
                thread = threading.Thread(target=self._made, args=[company], name="txbridge-half-new", daemon=True)
                self._making[company] = thread
                thread.start()
        return self._writers[Company.NOBODY]

    def is_served_here(self) -> bool:
        """See HalfWriter.is_served_here."""
        return any(writer.is_served_here() for writer in tuple(self._writers.values()))

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
                return self._writers[Company.NOBODY]
            if company not in self._writers:
                writer = self._new(company.value, f"half-{company.name.lower()}")
                self._begun.append(writer)
                writer.start()
                self._writers[company] = writer
            return self._writers[company]
