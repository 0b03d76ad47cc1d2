"""Who serves the delivery reports: a caller that waits for its own, or a thread of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

#: Who serves is woken at once for every report; this only bounds how late it is noticed that all shall stop, or that
#: nobody serves any more.
SERVE_S = 0.1

_T = TypeVar("_T")


class Serving:
    """Sees to it that `serve` (s) is called whenever somebody waits, by one thread at a time.

    One caller who waits for its own report serves best: no other thread has to be woken for it and to take the
    interpreter's lock from it, which took as long as Kafka does. When several wait, or nobody does, our thread serves.
    """

    def __init__(self, serve: Callable[[float], None], name: str) -> None:
        self._serve = serve
        #: Held by who serves. It knows by whom: a leader that is interrupted lets go of it if it is the leader's.
        self._lock = threading.RLock()
        #: The thread that serves now.
        self._server: int | None = None
        self._waiting: set[object] = set()
        #: A caller serves, or would: our thread stays away until it is needed, or callers stay away for a while.
        self._is_led = False
        self._needed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def expect(self) -> None:
        """There is something to serve, whether somebody waits for it or not."""
        if not self._waiting and not self._needed.is_set():
            self._needed.set()

    def stop(self, finish: Callable[[], None]) -> None:
        """End the thread; then `finish`, while nobody serves. May be called again when it was interrupted."""
        self._stopping = True
        self._needed.set()
        join(self._thread)
        with self._lock:
            finish()

    @property
    def is_served_here(self) -> bool:
        """Whether this code is called by what this thread serves: a delivery report, or a callback of the user's."""
        return self._server == threading.get_ident()

    @property
    def is_own_thread(self) -> bool:
        """Whether this code runs in the thread of ours, whoever waits."""
        return threading.get_ident() == self._thread.ident

    def _run(self) -> None:
        while not self._stopping:
            # Looked at while nobody holds the lock on behalf of this thread: who begins to wait after it will get it.
            if self._is_led and not self._waiting:
                self._is_led = False
                if not self._needed.wait(SERVE_S):
                    continue
            self._needed.clear()
            with self._lock:
                self._serve_here()

    def lead(self, until: Callable[[], bool]) -> None:
        """Serve until this holds, if nobody else does; a waiter."""
        self._is_led = True
        # A signal may interrupt this at any call, also right after the lock was given.
        try:
            if self._lock.acquire(blocking=False):
                while not (until() or self._stopping):
                    self._serve_here()
        finally:
            try:  # noqa: SIM105  the call of suppress() is one that a signal may interrupt
                self._lock.release()
            except RuntimeError:
                # It was not given: another thread serves.
                pass

    def _serve_here(self) -> None:
        self._server = threading.get_ident()
        try:
            self._serve(SERVE_S)
        finally:
            self._server = None

    def add(self, waiter: object) -> None:
        """It waits for a report from now on."""
        self._waiting.add(waiter)

    def remove(self, waiter: object) -> None:
        """It has it; twice does no harm."""
        self._waiting.discard(waiter)

    def leave(self, waiter: object) -> None:
        """It goes, and others that wait are served by our thread."""
        self._waiting.discard(waiter)
        if self._waiting and self._server is None:
            self._needed.set()


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Wait for the end of a thread (s, None: no limit), or for nothing, if it was never started."""
    if thread.ident is not None:
        thread.join(timeout)


class Waiter(Generic[_T]):
    """Waits for one report: `with Waiter(serving) as waiter`, let `report` be called, and ask for the `result`."""

    __slots__ = ("_reports", "_serving")

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._reports: SimpleQueue[_T] = SimpleQueue()

    def __enter__(self) -> Self:
        self._serving.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.leave(self)

    def report(self, result: _T) -> None:
        """To be called once."""
        # First: who serves, and sees that nobody waits any more, may leave.
        self._serving.remove(self)
        self._reports.put(result)

    def result(self) -> _T:
        """What was reported."""
        self._serving.lead(self._is_reported)
        return self._reports.get()

    def _is_reported(self) -> bool:
        return not self._reports.empty()
