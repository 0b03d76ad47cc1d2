"""A request and its answer as bytes of HTTP. Pure: no socket and no clock.

Only GET is understood. No body is read, and each connection carries one request.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO
from urllib.parse import parse_qsl, urlsplit

from txbridge.masking import masked_values

_REQUEST_LINE = re.compile(r"(\S+) (\S+) HTTP/1\.[01]\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
#: Most bytes of a request's head. Browsers behind a proxy with its cookies send some kilobytes.
LONGEST_HEAD = 16 * 1024
#: No page takes more than one parameter.
_MOST_PARAMETERS = 10
#: Ends of names that nobody can register: special names, and those of Kubernetes' Services.
_PRIVATE_ENDS = (".localhost", ".local", ".internal", ".svc")
#: A page may load nothing from elsewhere, be shown in no frame, and run no script but its own.
_HEADERS = (
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src {script}; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page."""

    path: str
    query: Mapping[str, str]
    #: The header Accept.
    accept: str = ""
    #: The name of this host that the client used, without the port; empty if it named none.
    host: str = ""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The answer to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    #: The script that the page may run, as in its policy.
    script: str = "'none'"

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> PageAnswer:
        return cls(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    @classmethod
    def json(cls, status: HTTPStatus, content: object) -> PageAnswer:
        return cls(status, "application/json", json.dumps(masked_values(content)).encode())

    def as_bytes(self) -> bytes:
        """The whole answer, with its head."""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
            f"{_HEADERS.format(script=self.script)}\r\n"
        )
        return head.encode("latin-1") + self.body


class RefusedRequestError(Exception):
    """A request that is not understood, or not allowed."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = PageAnswer.text(status, text)


def parse_request(received: bytes) -> PageRequest | None:
    """The request; None while its head is not complete. Raises RefusedRequestError."""
    end = _HEAD_END.search(received)
    if end is None:
        if len(received) > LONGEST_HEAD:
            raise RefusedRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long")
        return None
    line, _, rest = received[: end.end()].partition(b"\n")
    found = _REQUEST_LINE.fullmatch(line.decode("latin-1") + "\n")
    if found is None:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1")
    method, target = found.groups()
    if method != "GET":
        raise RefusedRequestError(HTTPStatus.METHOD_NOT_ALLOWED, "there is only GET")
    try:
        headers = parse_headers(BytesIO(rest))
        hosts = headers.get_all("Host", [])
        host = urlsplit(f"//{hosts[0]}").hostname if hosts else ""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, max_num_fields=_MOST_PARAMETERS))
    except (HTTPException, ValueError):
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "the head of the request is malformed") from None
    if len(hosts) > 1 or host is None:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "the header Host is malformed")
    return PageRequest(parts.path, query, headers.get("Accept", ""), host)


def is_private(host: str, *own: str) -> bool:
    """Whether no stranger's domain can be behind this name of a host.

    Otherwise a page of that domain could make its name lead to this machine, and read here with the browser of a person
    who may (DNS rebinding). An address, a name without a dot and the `own` names are private.
    """
    name = host.rstrip(".")
    if "." not in name or name.endswith(_PRIVATE_ENDS) or name in own:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
