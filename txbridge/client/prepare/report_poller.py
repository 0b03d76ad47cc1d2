"""Choice of the thread that serves the delivery reports: a caller that waits for its own, or a thread of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

from txbridge.client.base.threads import join

#: Longest call of `serve` (s). A report wakes the serving thread at once. So this only bounds the delay until a stop is
#: noticed, or until a thread notices that no other one serves.
SERVE_S = 0.1

_T = TypeVar("_T")


class Serving:
    """Calls `serve` (time-out in s) whenever a caller waits, from one thread at a time.

    If one caller waits, it serves for itself. No other thread must be woken and take the interpreter's lock from it,
    which took as long as Kafka itself. When several callers wait, or none, our own thread serves.
    """

    def __init__(self, serve: Callable[[float], None], name: str) -> None:
        self._serve = serve
        #: Held by the serving thread. It knows its owner, so an interrupted leader releases it only if it holds it.
        self._lock = threading.RLock()
        #: Id of the thread that serves now.
        self._server: int | None = None
        self._waiting: set[object] = set()
        #: Whether callers serve. Then our thread waits until it is needed, or until no caller has come for a while.
        self._is_led = False
        self._needed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def expect(self) -> None:
        """Note that there is something to serve, also if no caller waits for it."""
        if not self._waiting and not self._needed.is_set():
            self._needed.set()

    def stop(self, finish: Callable[[], None]) -> None:
        """End the thread, then call `finish` while nobody serves. May be called again if it was interrupted."""
        self._stopping = True
        self._needed.set()
        join(self._thread)
        with self._lock:
            finish()

    @property
    def is_served_here(self) -> bool:
        """Whether this thread serves now, so that a delivery report or a callback of the user calls this."""
        return self._server == threading.get_ident()

    @property
    def is_own_thread(self) -> bool:
        """Whether our own thread calls this."""
        return threading.get_ident() == self._thread.ident

    def _run(self) -> None:
        while not self._stopping:
            # Checked while this thread does not hold the lock, so a caller that begins to wait after it gets the lock.
            if self._is_led and not self._waiting:
                self._is_led = False
                if not self._needed.wait(SERVE_S):
                    continue
            self._needed.clear()
            with self._lock:
                self._serve_here()

    def lead(self, until: Callable[[], bool]) -> None:
        """Serve until `until` is true, unless another thread serves. Called by a waiter."""
        self._is_led = True
        # A signal may interrupt this at any call, also right after the lock was taken.
        try:
            if self._lock.acquire(blocking=False):
                while not (until() or self._stopping):
                    self._serve_here()
        finally:
            try:  # noqa: SIM105  the call of suppress() is one that a signal may interrupt
                self._lock.release()
            except RuntimeError:
                # The lock was not taken, because another thread serves.
                pass

    def _serve_here(self) -> None:
        self._server = threading.get_ident()
        try:
            self._serve(SERVE_S)
        finally:
            self._server = None

    def add(self, waiter: object) -> None:
        """Note that a waiter waits for its report from now on."""
        self._waiting.add(waiter)

    def remove(self, waiter: object) -> None:
        """Note that a waiter has its report. A second call does no harm."""
        self._waiting.discard(waiter)

    def leave(self, waiter: object) -> None:
        """Remove a waiter that leaves. Our thread serves the others that wait."""
        self._waiting.discard(waiter)
        if self._waiting and self._server is None:
            self._needed.set()


class Waiter(Generic[_T]):
    """Waits for one report. Use `with Waiter(serving) as waiter`, let `report` be called, and call `result`."""

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
        """Take the report. To be called once."""
        # First, because the serving thread may leave when it sees that no caller waits.
        self._serving.remove(self)
        self._reports.put(result)

    def result(self) -> _T:
        """Return what was reported, after a wait for it."""
        self._serving.lead(self._is_reported)
        return self._reports.get()

    def _is_reported(self) -> bool:
        return not self._reports.empty()
