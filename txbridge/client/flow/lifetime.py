"""Start and end of a client. Each happens once, also when several threads ask for it at the same time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from txbridge.client.base import process
from txbridge.client.base.log import report
from txbridge.client.errors import closed, started_before_a_fork
from txbridge.client.options import ClientOptions
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.runtime import Ask, Runtime


class Life:
    """Starts and ends the Runtime of a client. Thread-safe, and a signal may interrupt it anywhere."""

    def __init__(self, options: ClientOptions, ask: Ask) -> None:
        self._options = options
        self._ask = ask
        #: Held while the client starts or ends. A signal handler may close the client that its own thread is starting.
        self._lock = threading.RLock()
        #: True from the begin of `close`, and from its end.
        self._closed = self._ended = False
        #: Generation of the process in which the client was started; None until then.
        self._process: int | None = None
        #: The started client; None until then.
        self.runtime: Runtime | None = None

    def ensure_started(self) -> Runtime:
        """Return the Runtime, and start it if needed. Raises UsageError after close and a fork, else as `start`."""
        self._require_open()
        if self.is_of_another_process():
            raise started_before_a_fork()
        # Set before the lock is taken. A thread of the parent may hold the lock at a fork, and in the child forever.
        self._process = process.generation()
        with self._lock:
            # Checked again, because close() may have come while another call was starting.
            self._require_open()
            if self.runtime is None:
                # Imported here, because a program that never sends needs neither the admin client nor our connections.
                from txbridge.client.start import start  # noqa: PLC0415

                try:
                    self.runtime = start(self._options, self._ask, lambda: self._closed)
                except SystemError as error:
                    # confluent-kafka runs signal handlers inside its requests and ignores that one has raised. What it
                    # has raised, a KeyboardInterrupt mostly, is the cause.
                    raise error.__cause__ or error from None
            return self.runtime

    def is_of_another_process(self) -> bool:
        """Whether the start has begun before a fork. The client's threads do not exist in this process then."""
        return self._process is not None and self._process != process.generation()

    def close(
        self, timeout: float | None, refuse_calls: Callable[[], None], finish: Callable[[float | None], None]
    ) -> None:
        """End everything within `timeout` seconds (None: no limit), or wait for another call that does it already.

        `refuse_calls` returns at once. `finish` is `finish_checks` of Runtime.close. Raises UsageError in a callback.
        """
        deadline = Deadline(timeout)
        if self.runtime is not None and self.runtime.is_called_by_it():
            raise UsageError("close() was called by a callback, whose thread it would have to wait for")
        self._closed = True
        refuse_calls()
        # A signal may interrupt this at any call, also right after the lock was taken.
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
                # The lock was not taken, because another call held it for longer than this one waits.
                pass

    def _require_open(self) -> None:
        if self._closed:
            raise closed()
