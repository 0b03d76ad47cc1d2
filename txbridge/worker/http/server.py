"""The worker's web server, in threads of its own: /metrics, /livez, /readyz, and the pages that it is given.

Faust's web server is not used: it lives in the event loop, and does not answer when the loop stands still.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from txbridge.errors import LocalProblemError

#: A client that is silent for this long is cut off: each has a thread here.
_CLIENT_TIMEOUT_S = 10.0

#: A page may load nothing from elsewhere, be shown in no frame, and run no script but its own.
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

#: A question, answered with the reasons for a no; no reasons are a yes.
Question = Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a page."""

    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a page."""

    status: HTTPStatus
    content_type: str
    body: bytes


#: A page answers in the thread of the request.
Page = Callable[[Asked], Answered]


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
        parts = {"registry": registry, "questions": dict(questions), "pages": dict(pages)}
        handler = type("Handler", (_Handler,), parts)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server = type("Server", (_Server,), {"address_family": family})
            self._server: ThreadingHTTPServer = server((host, port), handler)
        except OSError as error:
            raise LocalProblemError(
                f"cannot listen on port {port} of {host} for the metrics: {error.strerror or error}. Choose others "
                f"with --metrics-port and --metrics-host; --metrics-port 0 does without"
            ) from None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="txbridge-web", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Two workers on one port would answer for each other.
    allow_reuse_port = False

    def server_bind(self) -> None:
        """Bind like http.server, but without asking a name server for this host's name, which can take long."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    registry: CollectorRegistry
    questions: Mapping[str, Question]
    pages: Mapping[str, Page]

    def _ask(self, page: Page) -> None:
        answer = page(Asked(dict(parse_qsl(urlsplit(self.path).query))))
        self._answer(answer.status, answer.content_type, answer.body, _PAGE_HEADERS)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in self.pages:
            self._ask(self.pages[path])
        elif path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encode(self.registry))
        elif path in self.questions:
            reasons = self.questions[path]()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            body = {"ok": not reasons, "reasons": reasons}
            self._answer(status, "application/json", json.dumps(body).encode())
        else:
            known = " ".join(["/metrics", *self.questions, *self.pages])
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"There is: {known}\n".encode())

    def _answer(
        self,
        status: HTTPStatus,
        content_type: str,
        body: bytes,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: a probe every few seconds is no news."""
