"""The web server of each program with --metrics-port: /metrics, /livez, /readyz, and the pages that it is given.

It has a thread and an event loop of its own, so that it also answers while the program's event loop stands still. It
never waits for a client. The number of connections is bounded, and so is the time of each. So a client can neither use
up the descriptors, threads or memory of the process, nor keep others from an answer.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from types import MappingProxyType

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from txbridge.errors import LocalProblemError
from txbridge.log import get_logger
from txbridge.web.exchange import LONGEST_HEAD, PageAnswer, PageRequest, RefusedRequestError, is_private, parse_request

#: Most open connections. Probes, a Prometheus and some browsers need a handful. When there are more, the oldest one of
#: the peer that has most is closed, so a new one is always served.
MOST_CONNECTIONS = 64
#: Time (s) from the connection to the end of the request's head. Clients send it at once.
_HEAD_S = 5.0
#: Time (s) for the answer to be taken. The largest ones have some hundred kilobytes.
_ANSWER_S = 10.0
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
#: A page, made in the server's thread within milliseconds.
Page = Callable[[PageRequest], PageAnswer]

_log = get_logger("txbridge.web")


class WebServer:
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
        self._questions = questions
        self._pages: dict[str, Page] = {"/metrics": lambda request: _metrics(registry, request), **pages}
        self._own_names = (host, socket.gethostname().lower())
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            raise LocalProblemError(
                f"cannot listen on port {port} of {host} for the metrics: {error.strerror or error}. Choose others "
                f"with --metrics-port and --metrics-host; --metrics-port 0 turns them off"
            ) from None
        # Prometheus may use any name of a host that is on the network. A browser alone can reach a loopback address.
        address = str(self._listener.getsockname()[0])
        self._guarded = frozenset(pages) if not ipaddress.ip_address(address).is_loopback else None
        # Not of the policy, which the program may have changed. This one waits for a socket in a way that is known.
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._closing = asyncio.Event()
        #: The open connections, each with its peer.
        self._clients: dict[asyncio.Task[None], str] = {}
        self._page_turn = asyncio.Lock()
        self._next_page = 0.0
        self._reserve: int | None = None
        self._thread = threading.Thread(target=self._run, name="txbridge-web", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and listen no more. Returns when that is done."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        # Of a server that was never started. The runner would let it run, but the caller may be in a loop of its own.
        self._loop.close()
        self._listener.close()
        if self._reserve is not None:
            os.close(self._reserve)

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._serve_all())

    async def _serve_all(self) -> None:
        self._keep_reserve()
        self._loop.add_reader(self._listener, self._accept_client)
        await self._closing.wait()
        self._loop.remove_reader(self._listener)

    def _accept_client(self) -> None:
        """Accept one connection. Called as long as one waits, each time after all others were served."""
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM and not self._free_descriptor():
                # The listener stays readable: without a pause the loop would spin.
                self._loop.remove_reader(self._listener)
                self._loop.call_later(
                    _NO_DESCRIPTOR_PAUSE_S, self._loop.add_reader, self._listener, self._accept_client
                )
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._serve_client(accepted))
        self._clients[task] = str(address[0])
        task.add_done_callback(self._drop_client)
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
        [(peer, _)] = Counter(self._clients.values()).most_common(1)
        self._drop_client(next(task for task, of in self._clients.items() if of == peer))

    def _drop_client(self, client: asyncio.Task[None]) -> None:
        """End a connection, or forget one that has ended."""
        self._clients.pop(client, None)
        if not client.cancel():
            self._keep_reserve()

    async def _serve_client(self, client: socket.socket) -> None:
        with client, suppress(OSError):  # also when it takes too long
            async with asyncio.timeout(_HEAD_S):
                request = await self._read_request(client)
            if request is None:
                return
            answer = request if isinstance(request, PageAnswer) else await self._make_answer(request)
            async with asyncio.timeout(_ANSWER_S):
                await self._loop.sock_sendall(client, answer.as_bytes())
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_CLOSE_S):
                while await self._receive_bytes(client):
                    pass

    async def _receive_bytes(self, client: socket.socket) -> bytes:
        # A client that always has sent more must let others have their turn, too.
        await asyncio.sleep(0)
        return await self._loop.sock_recv(client, LONGEST_HEAD)

    async def _read_request(self, client: socket.socket) -> PageRequest | PageAnswer | None:
        """The request, or the answer to one that is refused. None when the client has closed the connection."""
        received = b""
        while more := await self._receive_bytes(client):
            received += more
            try:
                request = parse_request(received)
                if request is not None:
                    self._require_private(request)
                    return request
            except RefusedRequestError as refused:
                return refused.answer
        return None

    def _require_private(self, request: PageRequest) -> None:
        is_guarded = self._guarded is None or request.path in self._guarded
        if is_guarded and not is_private(request.host, *self._own_names):
            raise RefusedRequestError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this page is not known by that name of a host: use its address, or --metrics-host with the name. "
                "A proxy must send one of them as Host",
            )

    async def _make_answer(self, request: PageRequest) -> PageAnswer:
        try:
            if request.path in self._questions:
                reasons = self._questions[request.path]()
                status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
                return PageAnswer.json(status, {"ok": not reasons, "reasons": reasons})
            if request.path in self._pages:
                return await self._make_page(request)
        except Exception as error:  # noqa: BLE001 - a defect of ours in one page must not end the others
            _log.error("unexpected_error", exc_info=error)
            return PageAnswer.text(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be answered: the log says why")
        known = " ".join(["/metrics", *self._questions, *(path for path in self._pages if path != "/metrics")])
        return PageAnswer.text(HTTPStatus.NOT_FOUND, f"There is: {known}")

    async def _make_page(self, request: PageRequest) -> PageAnswer:
        async with self._page_turn:
            await asyncio.sleep(self._next_page - time.monotonic())
            before = time.thread_time()
            made = self._pages[request.path](request)
            # Without the time in which other threads had the interpreter's lock.
            self._next_page = time.monotonic() + (time.thread_time() - before) * (_SHARE - 1)
        return made


@contextmanager
def serving(host: str, port: int, registry: CollectorRegistry, questions: Mapping[str, Question]) -> Iterator[None]:
    """Serve within the block, unless the port is 0. The caller may put other questions in the place of these.

    Raises LocalProblemError when it cannot listen there.
    """
    if not port:
        yield
        return
    with closing(WebServer(host, port, registry, questions)) as web:
        web.start()
        yield


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


def _metrics(registry: CollectorRegistry, request: PageRequest) -> PageAnswer:
    encode, content_type = choose_encoder(request.accept)
    return PageAnswer(HTTPStatus.OK, content_type, encode(registry))
