"""When a blocking client starts and when it ends: once each, whoever asks at the same time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from txbridge.client.errors import closed
from txbridge.client.flow import process
from txbridge.client.log import report
from txbridge.client.options import ClientOptions
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.runtime import Ask, Runtime


class Life:
    """Starts the Runtime of a client and ends it; thread-safe, and may be interrupted by a signal anywhere."""

    def __init__(self, options: ClientOptions, ask: Ask) -> None:
        self._options = options
        self._ask = ask
        #: Held by who starts or ends. The handler of a signal may close what its own thread is just starting.
        self._lock = threading.RLock()
        #: From the begin of `close`, and from its end.
        self._closed = self._ended = False
        #: The process in which it was started; None until then.
        self._process: int | None = None
        #: Once it is started.
        self.runtime: Runtime | None = None

    def started(self) -> Runtime:
        """The Runtime, which is started if need be. UsageError after close and after a fork; else as `start`."""
        self._require_open()
        if self.is_of_another_process():
            raise UsageError("this producer was started before a fork; create one in the child")
        # Before the lock, which a thread of the parent may hold for ever at a fork.
        self._process = process.generation()
        with self._lock:
            # Looked at again: close() may have come while another call was starting.
            self._require_open()
            if self.runtime is None:
                # Only here: a program that imports this and never sends need not load what speaks to Kafka.
                from txbridge.client.start import start  # noqa: PLC0415

                self.runtime = start(self._options, self._ask, lambda: self._closed)
            return self.runtime

    def is_of_another_process(self) -> bool:
        """Whether it was started, or begun to, before a fork: its threads do not exist here."""
        return self._process is not None and self._process != process.generation()

    def close(
        self, timeout: float | None, refuse_calls: Callable[[], None], finish: Callable[[float | None], None]
    ) -> None:
        """End everything, for at most `timeout` seconds. `refuse_calls` returns at once; `finish` is of Runtime.close.

        When another call ends it already, waits for that.
        """
        deadline = Deadline(timeout)
        if self.runtime is not None and self.runtime.is_called_by_it():
            raise UsageError("close() was called by a callback, whose thread it would have to wait for")
        self._closed = True
        refuse_calls()
        # A signal may interrupt this at any call, also right after the lock was given.
        try:
            if self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)) and not self._ended:
                if self.runtime is None:
                    finish(0)
                else:
                    self.runtime.close(deadline.timeout, finish)
                self._ended = True
                report(logging.INFO, "client_closed", group=self._options.group)
        finally:
            try:  # noqa: SIM105  the call of suppress() is one that a signal may interrupt
                self._lock.release()
            except RuntimeError:
                # It was not given: another call is at it for longer than this one waits.
                pass

    def _require_open(self) -> None:
        if self._closed:
            raise closed()
