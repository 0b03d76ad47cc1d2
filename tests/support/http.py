"""HTTP requests of tests: the answer is returned whatever its status, and no socket stays open.

urllib raises an HTTPError for a status such as 503. It is an OSError and it holds the connection. Code that only
catches it leaks a socket, and the garbage collector reports that in another test.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from email.message import Message
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Message

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(request: str | urllib.request.Request, timeout: float = 30) -> Answer:
    """Send a GET request for this URL, or this request. Raises OSError if nobody answers."""
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: TID251
            return Answer(answer.status, answer.read(), answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers)


def ask_if_there(request: str | urllib.request.Request, timeout: float = 30) -> Answer:
    """The same, with status 0 while nobody answers."""
    try:
        return ask(request, timeout)
    except OSError:
        return Answer(0, b"", Message())


def place_order(port: int, number: str) -> int:
    """Ask the shop of an example for an order. The status; 0 while nothing answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/{number}", b"", method="POST")
    return ask_if_there(request, timeout=120).status
