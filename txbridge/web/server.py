"""The web server of each program with --metrics-port: /metrics, /livez, /readyz, and the pages that it is given.

One thread of its own serves all connections, so that it also answers while an event loop stands still. It never waits
for a client. The number of connections is bounded, and so is the time of each. So a client can neither use up the
descriptors, threads or memory of the process, nor keep others from an answer.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from types import MappingProxyType

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from txbridge.errors import LocalProblemError
from txbridge.log import get_logger
from txbridge.web.exchange import LONGEST_HEAD, Answer, RefusedRequestError, Request, is_private, parse_request

#: Most open connections. Probes, a Prometheus and some browsers need a handful. When there are more, the oldest one of
#: the peer that has most is closed, so a new one is always served.
MOST_CONNECTIONS = 64
#: Most connections that are accepted before the open ones are served again.
_ACCEPTS = 16
#: Time (s) from the connection to the end of the request's head. Clients send it at once.
_HEAD_S = 5.0
#: Time (s) for the answer to be taken. The largest ones have some hundred kilobytes.
_ANSWER_S = 10.0
#: Time (s) for the answer of a page that has to be looked up.
_LOOK_UP_S = 60.0
#: Time (s) for the client to close the connection. If it has sent more than its request, the answer would be lost when
#: this side closes first.
_CLOSE_S = 1.0
#: Metrics and pages are made in at most one of so many parts of the time. The threads that deliver need the
#: interpreter's lock, too, and anybody may ask for pages all the time.
_SHARE = 5
#: Pause (s) in which nothing is accepted when the process has no descriptor left.
_NO_DESCRIPTOR_PAUSE_S = 0.5
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

#: A question, answered at once with the reasons for a no; no reasons are a yes.
Question = Callable[[], list[str]]
#: A page, made in the server's thread. If it takes longer than milliseconds, another thread completes a future.
Page = Callable[[Request], Answer | Future[Answer]]

_log = get_logger("txbridge.web")


@dataclass(slots=True, eq=False)
class _Client:
    socket: socket.socket
    peer: str
    #: Monotonic time (s) at which it is cut off.
    until: float
    received: bytearray = field(default_factory=bytearray)
    #: What is still to be sent; None before the answer.
    answer: memoryview | None = None
    is_open: bool = True


class Web:
    """The web server. It listens as soon as it is made, and answers after `start`."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        questions: Mapping[str, Question],
        pages: Mapping[str, Page] = MappingProxyType({}),
    ) -> None:
        """Listen. `questions` and `pages` are by path. Raises LocalProblemError when it cannot listen there."""
        self._questions = dict(questions)
        self._pages: dict[str, Page] = {"/metrics": lambda request: _metrics(registry, request), **pages}
        self._own_names = (host, socket.gethostname().lower())
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            raise LocalProblemError(
                f"cannot listen on port {port} of {host} for the metrics: {error.strerror or error}. Choose others "
                f"with --metrics-port and --metrics-host; --metrics-port 0 does without"
            ) from None
        # Prometheus may use any name of a host that is on the network. A browser alone can reach a loopback address.
        address = str(self._listener.getsockname()[0])
        self._guarded = frozenset(pages) if not ipaddress.ip_address(address).is_loopback else None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._clients: dict[_Client, None] = {}
        self._queue: deque[tuple[_Client, Request]] = deque()
        self._next_page = 0.0
        self._looked_up: deque[tuple[_Client, Future[Answer]]] = deque()
        self._reserve: int | None = None
        self._accepts_from: float | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="txbridge-web", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and listen no more. Returns when that is done."""
        self._closing = True
        self._waker.send(b"x")
        if self._thread.is_alive():
            self._thread.join()
        for client in list(self._clients):
            self._drop(client)
        for one in (self._selector, self._listener, self._waker, self._woken):
            one.close()
        if self._reserve is not None:
            os.close(self._reserve)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._keep_reserve()
            for key, _ in self._selector.select(self._timeout()):
                if key.data is not None:
                    self._serve(key.data)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._take_looked_up()
            now = time.monotonic()
            self._make_page(now)
            for client in [one for one in self._clients if one.until <= now]:
                self._drop(client)
            if self._accepts_from is not None and self._accepts_from <= now:
                self._accepts_from = None
                self._selector.register(self._listener, selectors.EVENT_READ)

    def _timeout(self) -> float | None:
        times = [client.until for client in self._clients]
        if self._queue:
            times.append(self._next_page)
        if self._accepts_from is not None:
            times.append(self._accepts_from)
        return max(0.0, min(times) - time.monotonic()) if times else None

    # --- connections ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for attempt in range(_ACCEPTS):
            try:
                accepted, address = self._listener.accept()
            except OSError as error:
                # Without a descriptor Linux gives the same error when nobody waits. At first somebody does.
                if error.errno not in _NO_ROOM or attempt:
                    return
                if not self._free_descriptor():
                    # The listener stays readable: without a pause this loop would spin.
                    self._selector.unregister(self._listener)
                    self._accepts_from = time.monotonic() + _NO_DESCRIPTOR_PAUSE_S
                    return
                continue
            accepted.setblocking(False)
            client = _Client(accepted, str(address[0]), time.monotonic() + _HEAD_S)
            self._clients[client] = None
            self._selector.register(accepted, selectors.EVENT_READ, client)
            if len(self._clients) > MOST_CONNECTIONS:
                self._drop_oldest()

    def _free_descriptor(self) -> bool:
        """Free a descriptor for a new connection: the reserve, or that of another connection."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        elif self._clients:
            self._drop_oldest()
        else:
            return False
        return True

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _drop_oldest(self) -> None:
        """Drop the oldest connection of the peer that has most: a flood closes its own connections."""
        [(peer, _)] = Counter(client.peer for client in self._clients).most_common(1)
        self._drop(next(client for client in self._clients if client.peer == peer))

    def _drop(self, client: _Client) -> None:
        if client.is_open:
            client.is_open = False
            del self._clients[client]
            with suppress(KeyError):  # not registered while its page is made
                self._selector.unregister(client.socket)
            client.socket.close()

    def _wait_for(self, client: _Client, event: int) -> None:
        try:
            self._selector.modify(client.socket, event, client)
        except KeyError:
            self._selector.register(client.socket, event, client)

    def _serve(self, client: _Client) -> None:
        """Read or write as far as that is possible without waiting."""
        if not client.is_open:
            return  # dropped for another one in this round
        try:
            if client.answer is not None and client.answer.nbytes:
                self._send(client)
            elif not (received := client.socket.recv(LONGEST_HEAD)):
                self._drop(client)
            elif client.answer is None:
                client.received += received
                self._read(client)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        try:
            request = parse_request(bytes(client.received))
            if request is None:
                return
            self._require_private(request)
        except RefusedRequestError as refused:
            self._give(client, refused.answer)
            return
        page = self._pages.get(request.path)
        if request.path in self._questions:
            self._answer(client, lambda: _as_answer(self._questions[request.path]()))
        elif page is not None:
            # What else it sends is not read before the answer.
            self._selector.unregister(client.socket)
            client.until = time.monotonic() + _LOOK_UP_S
            self._queue.append((client, request))
        else:
            known = " ".join(["/metrics", *self._questions, *(path for path in self._pages if path != "/metrics")])
            self._give(client, Answer.text(HTTPStatus.NOT_FOUND, f"There is: {known}"))

    def _require_private(self, request: Request) -> None:
        is_guarded = self._guarded is None or request.path in self._guarded
        if is_guarded and not is_private(request.host, *self._own_names):
            raise RefusedRequestError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this page is not known by that name of a host: use its address, or --metrics-host with the name. "
                "A proxy must send one of them as Host",
            )

    # --- answers ----------------------------------------------------------------------------------------------------

    def _make_page(self, now: float) -> None:
        """Make the next page that was asked for, if it is time for one."""
        while self._queue and self._next_page <= now:
            client, request = self._queue.popleft()
            if not client.is_open:
                continue
            before = time.thread_time()
            self._answer(client, partial(self._pages[request.path], request))
            # Without the time in which other threads had the interpreter's lock.
            self._next_page = time.monotonic() + (time.thread_time() - before) * (_SHARE - 1)
            return

    def _answer(self, client: _Client, make: Callable[[], Answer | Future[Answer]]) -> None:
        """Give the client what `make` returns, now or as soon as it is looked up."""
        made = self._made(make)
        if isinstance(made, Answer):
            self._give(client, made)
        else:
            made.add_done_callback(partial(self._note_looked_up, client))

    @staticmethod
    def _made(make: Callable[[], Answer | Future[Answer]]) -> Answer | Future[Answer]:
        """What `make` returns, or an answer that it could not."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - a defect of ours in one page must not end the others
            _log.error("unexpected_error", exc_info=error)
            return Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be answered: the log says why")

    def _note_looked_up(self, client: _Client, answer: Future[Answer]) -> None:
        """Called in any thread."""
        self._looked_up.append((client, answer))
        with suppress(OSError):  # closed meanwhile
            self._waker.send(b"x")

    def _take_looked_up(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4_096)
        while self._looked_up:
            client, answer = self._looked_up.popleft()
            if client.is_open:
                self._answer(client, answer.result)

    def _give(self, client: _Client, answer: Answer) -> None:
        client.answer = memoryview(answer.as_bytes())
        client.until = time.monotonic() + _ANSWER_S
        try:
            self._send(client)
        except BlockingIOError:
            self._wait_for(client, selectors.EVENT_WRITE)
        except OSError:
            self._drop(client)

    def _send(self, client: _Client) -> None:
        """Raises BlockingIOError when the client has to take something first, and OSError."""
        assert client.answer is not None
        while client.answer.nbytes:
            client.answer = client.answer[client.socket.send(client.answer) :]
        client.socket.shutdown(socket.SHUT_WR)
        client.until = time.monotonic() + _CLOSE_S
        self._wait_for(client, selectors.EVENT_READ)


def _listen(host: str, port: int) -> socket.socket:
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Not SO_REUSEPORT: two workers on one port would answer for each other.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MOST_CONNECTIONS)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _metrics(registry: CollectorRegistry, request: Request) -> Answer:
    encode, content_type = choose_encoder(request.accept)
    return Answer(HTTPStatus.OK, content_type, encode(registry))


def _as_answer(reasons: list[str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Answer(status, "application/json", json.dumps({"ok": not reasons, "reasons": reasons}).encode())
