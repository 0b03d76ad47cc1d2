"""A fetch of jars that takes too long, from a repository of this machine that delivers byte by byte without an end."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from txbridge.embedded import fetch
from txbridge.embedded.artifacts import Artifact
from txbridge.errors import EnvironmentProblemError

JARS = [Artifact("org.example", name, "1", 1_000_000, "00") for name in ("one", "two")]


class Endless(BaseHTTPRequestHandler):
    ended = threading.Event()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000000000")
        self.end_headers()
        try:
            while not self.ended.wait(0.01):
                self.wfile.write(b"x" * 10_000)
        except OSError:
            pass  # the fetch was given up

    def log_message(self, *_):
        pass


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Endless.ended.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}")
    yield
    Endless.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("late", [0.0, 0.5], ids=["at once", "on a busy machine"])
def test_a_fetch_that_takes_too_long_is_given_up_with_what_to_do(tmp_path, monkeypatch, late):
    def wait(transfers, seconds, when):
        return concurrent.futures.wait(transfers, seconds + late, when)

    monkeypatch.setattr(fetch, "FETCH_TIMEOUT_S", 1.0)
    monkeypatch.setattr(fetch, "wait", wait)
    with pytest.raises(
        EnvironmentProblemError, match="fetching Kafka took longer than 1 s and was given up; try again"
    ):
        fetch.fetch_jars(tmp_path, JARS, "Kafka", Console(quiet=True))
