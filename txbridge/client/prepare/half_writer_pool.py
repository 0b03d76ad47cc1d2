"""Writers of half messages of a client. It has several, because the linger is a setting of a librdkafka producer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from txbridge.client.base.log import report
from txbridge.client.prepare.half_writer import HalfWriter
from txbridge.errors import UsageError

#: Linger (ms) by the name of the writer's thread: the time that half messages wait for others, to share a request.
_LINGER_MS = {
    # A caller waits for its own message. While few do, hardly any other message would come.
    "half": 0.0,
    "half-2": 0.0,
    "half-3": 0.0,
    "half-4": 0.0,
    # Many callers wait, each for its own message. Half of the time that Kafka takes, so that callers whose messages
    # were acknowledged together share a request again.
    "half-callers": 0.5,
    # No caller waits for a single message. The default of Kafka's own producer (KIP-1030).
    "half-many": 5.0,
}
*_FOR_CALLERS, _FOR_MANY = _LINGER_MS
#: Half messages in flight from which on a caller takes the next writer. An idempotent librdkafka producer sends at once
#: while fewer than five of a partition are in flight. It asks without a pause whether one that waits behind five may
#: go, which takes up to a whole processor. One less, because several threads choose at the same moment. With 15 threads
#: and a round trip of 3 ms, one writer without a linger instead of four takes a sixth from the rate.
_BUSY_FROM = 4
#: Running transactions from which on all callers share the last writer, which lingers. Otherwise half of the messages
#: of 32 threads would leave from the four others in small requests, and five threads would wake for their reports.
_MANY_FROM = 16
#: Local transactions under way from which on they share it, too, if no more than four callers wait for half messages:
#: more would wait behind five. Such local transactions take longer than the linger. With 8 threads and PostgreSQL,
#: sharing takes a seventh from the processor time of the service and a twelfth from Kafka's. Callers with next to no
#: local transaction, whom the count leaves alone, would lose half of their rate.
_LOCAL_FROM = 4


class HalfWriters:
    """Writers of half messages, each of them made when it is first needed; thread-safe.

    `new` makes a writer from its linger (ms) and the name of its thread.
    """

    def __init__(self, new: Callable[[float, str], HalfWriter]) -> None:
        self._new = new
        #: Held while a writer is made.
        self._lock = threading.Lock()
        self._is_closed = False
        first = _FOR_CALLERS[0]
        self._first = new(_LINGER_MS[first], first)
        self._writers = {first: self._first}

    def start(self) -> None:
        """Connect the first writer."""
        self._first.start()
        self._first.wait_for_connection()

    def for_caller(self, running: int, local: int) -> HalfWriter:
        """Return the writer for a half message that its caller waits for.

        So many transactions are `running`, and so many of these are in their `local` transactions.
        """
        writer = self._first
        shares = running >= _MANY_FROM or (local >= _LOCAL_FROM and running - local <= _BUSY_FROM)
        for name in _FOR_CALLERS[-1:] if shares else _FOR_CALLERS:
            writer = self._writers.get(name) or self._make_writer(name)
            if not writer.is_connected:
                return self._first
            if writer.on_their_way < _BUSY_FROM:
                break
        return writer

    def for_many(self, *, waits: bool) -> HalfWriter:
        """Return the writer for half messages that no caller waits for by itself.

        It may have to be connected first. A caller that does not wait for that gets another writer.
        """
        writer = self._writers.get(_FOR_MANY)
        if writer is None or not writer.is_connected:
            writer = self._make_writer(_FOR_MANY)
            if not (waits or writer.is_connected):
                return self._first
            writer.wait_for_connection()
        return writer

    def is_this_thread(self) -> bool:
        """See HalfWriter.is_this_thread."""
        return any(writer.is_this_thread() for writer in tuple(self._writers.values()))

    def close(self) -> None:
        """Fail half messages that are not acknowledged by now. May be called again."""
        with self._lock:
            self._is_closed = True
        for writer in self._writers.values():
            writer.stop()
        for writer in self._writers.values():
            writer.close()

    def _make_writer(self, name: str) -> HalfWriter:
        with self._lock:
            if self._is_closed:
                # Nobody would close another one.
                return self._first
            if name not in self._writers:
                try:
                    self._writers[name] = self._new(_LINGER_MS[name], name)
                except UsageError as error:
                    # They were right at the start. By now a key file is unreadable, or no more threads can be started.
                    report(logging.ERROR, "half_writer_not_made", writer=name, reason=error, next="using the first one")
                    self._writers[name] = self._first
            writer = self._writers[name]
            # Here, because a signal may have interrupted the call that has made it.
            writer.start()
            return writer
