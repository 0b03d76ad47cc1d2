"""The web server: what it answers, and that nobody who reaches its port keeps others from an answer."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from tests.support import http, port_attacks
from tests.support.harness import eventually
from tests.support.port_attacks import connect
from txbridge.embedded.ports import free_port
from txbridge.errors import EnvironmentProblemError
from txbridge.web import web_server
from txbridge.web.exchange import PageAnswer, PageRequest, is_private
from txbridge.web.web_server import MOST_CONNECTIONS, WebServer


class Page:
    """A page that fails, and one whose making takes long."""

    def __init__(self) -> None:
        self.made: list[float] = []

    def broken(self, _request: PageRequest) -> PageAnswer:
        raise RuntimeError("a defect")

    def costly(self, _request: PageRequest) -> PageAnswer:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        self.made.append(time.monotonic())
        return PageAnswer.text(HTTPStatus.OK, "done")


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def web(reasons: list[str], page: Page) -> Iterator[WebServer]:
    registry = CollectorRegistry()
    # Its page has a megabyte, more than the system keeps for a slow reader.
    Gauge("large", "x" * 1_000_000, registry=registry)
    pages = {"/broken": page.broken, "/costly": page.costly}
    web = WebServer("127.0.0.1", free_port(), registry, {"/livez": lambda: reasons}, pages)
    web.start()
    yield web
    web.close()


def get(web: WebServer, path: str) -> http.Answer:
    return http.ask(f"http://127.0.0.1:{web.port}{path}", 60)


def raw(web: WebServer, request: bytes) -> bytes:
    """Everything that the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", web.port), 60) as connection:
        connection.sendall(request)
        found = b""
        while received := connection.recv(65_536):
            found += received
        return found


def test_a_question_is_answered_with_its_reasons(web: WebServer, reasons: list[str]) -> None:
    status, body, headers = get(web, "/livez?verbose=1")
    assert (status, json.loads(body)) == (200, {"ok": True, "reasons": []})
    assert headers["Content-Type"] == "application/json"
    reasons.append("partition 0: being taken over")
    status, body, _ = get(web, "/livez")
    assert (status, json.loads(body)) == (503, {"ok": False, "reasons": ["partition 0: being taken over"]})


def test_metrics_come_in_the_format_of_prometheus_and_a_wrong_path_names_the_right_ones(web: WebServer) -> None:
    status, body, headers = get(web, "/metrics")
    assert (status, body.endswith(b"\nlarge 0.0\n")) == (200, True)
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert get(web, "/")[:2] == (404, b"There is: /metrics /livez /broken /costly\n")


def test_a_defect_of_a_page_is_logged_and_ends_nothing_else(web: WebServer) -> None:
    with capture_logs() as logs:
        assert get(web, "/broken").status == 500
        assert get(web, "/livez").status == 200
    assert [(line["event"], str(line["exc_info"])) for line in logs] == [("unexpected_error", "a defect")]


def test_pages_are_made_in_a_fifth_of_the_time_however_many_ask(web: WebServer, page: Page) -> None:
    """Each takes 20 ms of a processor."""
    threads = [threading.Thread(target=get, args=(web, "/costly")) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert get(web, "/livez").status == 200
    for thread in threads:
        thread.join(60)
    gaps = [after - before for before, after in pairwise(page.made)]
    assert len(gaps) == 7
    assert min(gaps) >= 0.08


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\nHost: localhost:1\n\n", 200),
        (b"GET /livez HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n", 421),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
        (b"POST /livez HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n" + b"[" * 9_000, 405),
        (b"GET /livez?" + b"&".join([b"a=b"] * 20) + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 400),
        (b"GET /" + b"x" * 17_000, 431),
    ],
)
def test_a_bad_request_is_answered_and_leaves_no_trace(web: WebServer, request_: bytes, status: int) -> None:
    with capture_logs() as logs:
        answer = raw(web, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert b"\r\nConnection: close\r\n" in answer
    assert logs == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("worker-1", True),
        ("worker.orders.svc.cluster.local", True),
        ("worker.orders.svc", True),
        ("metrics.example.com", True),
        ("", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example.", False),
    ],
)
def test_a_name_that_a_stranger_can_register_is_not_private(host: str, expected: bool) -> None:
    assert is_private(host, "metrics.example.com") is expected


def test_on_the_network_metrics_are_answered_by_any_name_and_pages_are_not() -> None:
    pages = {"/status": lambda _: PageAnswer.text(HTTPStatus.OK, "ok")}
    web = WebServer("0.0.0.0", free_port(), CollectorRegistry(), {"/livez": list}, pages)
    web.start()
    try:
        status = {
            path: raw(web, f"GET {path} HTTP/1.1\r\nHost: worker.example.com\r\n\r\n".encode())[9:12]
            for path in ("/metrics", "/livez", "/status")
        }
    finally:
        web.close()
    assert status == {"/metrics": b"200", "/livez": b"200", "/status": b"421"}


@pytest.mark.parametrize("attack", port_attacks.ATTACKS)
def test_the_port_answers_during(web: WebServer, attack: str) -> None:
    with capture_logs() as logs, port_attacks.under(attack, web.port, 300):
        for _ in range(20):
            assert get(web, "/livez").status == 200
        assert len(web._clients) <= MOST_CONNECTIONS
    eventually(lambda: len(web._clients) == 0)
    assert logs == []
    assert get(web, "/metrics").status == 200


@pytest.mark.parametrize(
    ("begin", "constant"),
    [(b"", "_HEAD_S"), (b"GET /livez HT", "_HEAD_S"), (b"GET /metrics HTTP/1.1\r\n\r\n", "_ANSWER_S")],
)
def test_a_connection_has_a_time_for_its_request_and_one_for_its_answer(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, begin: bytes, constant: str
) -> None:
    monkeypatch.setattr(web_server, constant, 0.2)
    with connect(web.port, 4_096) as connection:
        connection.send(begin)
        eventually(lambda: len(web._clients) == 1)
        eventually(lambda: len(web._clients) == 0)


def test_a_client_that_sends_on_while_it_is_answered_gets_the_whole_answer(web: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", web.port), 60) as connection:
        connection.sendall(b"POST /livez HTTP/1.1\r\n\r\n" + b"x" * 200_000)
        assert connection.makefile("rb").read().endswith(b"\r\n\r\nthere is only GET\n")


def take_all_descriptors(taken: list[int]) -> None:
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))


def test_probes_are_answered_when_no_descriptor_is_left(web: WebServer) -> None:
    eventually(lambda: web._reserve is not None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    probes = [socket.socket() for _ in range(3)]
    try:
        take_all_descriptors(taken)
        for probe in probes:
            probe.settimeout(60)
            probe.connect(("127.0.0.1", web.port))
            probe.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            assert probe.recv(12) == b"HTTP/1.1 200"
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for probe in probes:
            probe.close()
    assert get(web, "/livez").status == 200


def test_a_connection_that_can_not_be_accepted_is_accepted_later_without_spinning(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other parts of the process have taken every descriptor, the reserve included."""
    # Not by taking them all: the collector may close a socket of another test at any moment.
    tried: list[float] = []
    listener = web._listener

    def accept() -> tuple[socket.socket, object]:
        if len(tried) < 3:
            tried.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")
        return listener.accept()

    monkeypatch.setattr(web, "_free_descriptor", lambda: False)
    with socket.socket() as probe:
        probe.settimeout(60)
        monkeypatch.setattr(web, "_listener", SimpleNamespace(accept=accept, fileno=listener.fileno))
        probe.connect(listener.getsockname())
        probe.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert probe.recv(12) == b"HTTP/1.1 200"
    assert len(tried) == 3
    assert min(after - before for before, after in pairwise(tried)) >= 0.45


@pytest.mark.parametrize(
    ("host", "why"),
    [("127.0.0.1", "Address already in use"), ("192.0.2.1", "Cannot assign"), ("no.such.host.invalid", "")],
)
def test_an_address_that_is_not_free_is_reported_in_one_line(web: WebServer, host: str, why: str) -> None:
    with pytest.raises(EnvironmentProblemError) as caught:
        WebServer(host, web.port, CollectorRegistry(), {})
    text = str(caught.value)
    assert text.startswith(f"cannot listen on port {web.port} of {host} for the metrics: {why}")
    assert "--metrics-port" in text
    assert "\n" not in text


def test_ipv6_works_where_the_machine_has_it() -> None:
    try:
        web = WebServer("::1", free_port(), CollectorRegistry(), {})
    except EnvironmentProblemError:
        pytest.skip("no IPv6 here")
    web.start()
    web.close()
