"""Fetches of jars from a repository of this machine: through a proxy, with a password, and how they fail."""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import HTTPPasswordMgrWithPriorAuth

import pytest

from txbridge.embedded import jars
from txbridge.embedded.jars import Artifact
from txbridge.errors import EnvironmentProblemError, UsageError

JARS = [
    Artifact("org.example.some", name, "1", len(name), hashlib.sha256(name.encode()).hexdigest())
    for name in ("one", "two")
]
SECRET = base64.b64encode(b"me:p@ss").decode()


class Repository(ThreadingHTTPServer):
    """Jars whose content is their name. `ill` says what is wrong with the second one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ill = ""
        self.stopped = threading.Event()
        #: Targets of the requests and their header Authorization.
        self.asked: list[tuple[str, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self):
        self.server.asked.append((self.path, self.headers["Authorization"]))
        name = self.path.split("/")[-3]
        ill = self.server.ill if name == "two" or self.server.ill == "endless" else ""
        if ill == "missing":
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", "1000000000" if ill in {"endless", "cut off"} else str(len(name)))
        self.end_headers()
        self.wfile.write(b"222" if ill == "altered" else name.encode())
        try:
            while ill == "endless" and not self.server.stopped.wait(0.01):
                self.wfile.write(b"x" * 10_000)
        except OSError:
            pass  # the fetch was given up

    def log_message(self, *_):
        pass


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(jars, "kafka_jars", lambda _: JARS)
    with Repository() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/maven/")
        yield server
        server.stopped.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> jars.JarCache:
    monkeypatch.setenv("TXBRIDGE_CACHE_DIR", str(tmp_path))
    return jars.JarCache()


def test_jars_are_fetched_by_mavens_layout(repository, cache):
    cache.ensure_jars()
    assert {path.name: path.read_text() for path in cache.folder.iterdir()} == {"one-1.jar": "one", "two-1.jar": "two"}
    assert sorted(repository.asked) == [
        ("/maven/org/example/some/one/1/one-1.jar", None),
        ("/maven/org/example/some/two/1/two-1.jar", None),
    ]


def test_a_mirror_gets_the_user_and_password_of_its_address(repository, cache, monkeypatch):
    monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", f"http://me:p%40ss@127.0.0.1:{repository.server_port}/maven")
    cache.ensure_jars()
    assert {secret for _, secret in repository.asked} == {f"Basic {SECRET}"}


def test_no_two_threads_share_what_notes_the_answers(repository, cache, monkeypatch):
    """One thread read it while another one wrote: "dictionary changed size during iteration"."""
    users = defaultdict(set)

    class Noted(HTTPPasswordMgrWithPriorAuth):
        def is_authenticated(self, authuri):
            users[self].add(authuri)
            return super().is_authenticated(authuri)

    monkeypatch.setattr(jars, "HTTPPasswordMgrWithPriorAuth", Noted)
    cache.ensure_jars()
    assert [len(addresses) for addresses in users.values()] == [1, 1]


def test_an_address_may_have_every_character(repository, cache, monkeypatch):
    monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", f"http://127.0.0.1:{repository.server_port}/größe %41 b")
    cache.ensure_jars()
    assert ("/gr%C3%B6%C3%9Fe%20%41%20b/org/example/some/one/1/one-1.jar", None) in repository.asked


def test_a_proxy_gets_the_whole_address(repository, cache, monkeypatch):
    monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", "http://maven.invalid/central")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{repository.server_port}")
    cache.ensure_jars()
    assert ("http://maven.invalid/central/org/example/some/one/1/one-1.jar", None) in repository.asked


@pytest.mark.parametrize(
    ("ill", "message"),
    [
        (
            "missing",
            r"^two-1\.jar could not be fetched: HTTP Error 404: Not Found\. .* set HTTPS_PROXY.*TXBRIDGE_MAVEN",
        ),
        ("cut off", r"^two-1\.jar could not be fetched: the connection ended 999999997 bytes too early\. "),
        (
            "altered",
            r"delivered another two-1\.jar than the one that txbridge was released with \(SHA-256 9b871512327c",
        ),
        ("away", r"could not be fetched: .*refused.* set HTTPS_PROXY"),
    ],
)
def test_a_fetch_that_fails_says_what_to_do_and_leaves_nothing(repository, cache, monkeypatch, ill, message):
    repository.ill = ill
    if ill == "away":
        monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", "http://127.0.0.1:1")
    with pytest.raises(EnvironmentProblemError, match=message):
        cache.ensure_jars()
    assert [path.name for path in cache.root.iterdir()] == ["kafka-4.3.1.lock"]


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("/srv/maven", UsageError, "TXBRIDGE_MAVEN_REPOSITORY must begin with http:// or https://"),
        ("http://[::1", UsageError, "TXBRIDGE_MAVEN_REPOSITORY is not an address: Invalid IPv6 URL"),
        ("http://a..b", EnvironmentProblemError, "could not be fetched: .*label empty"),
    ],
)
def test_an_address_that_is_none_is_refused(cache, monkeypatch, address, error, message):
    monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", address)
    with pytest.raises(error, match=message):
        cache.ensure_jars()


@pytest.mark.parametrize("late", [0.0, 0.5], ids=["at once", "on a busy machine"])
def test_a_fetch_that_takes_too_long_is_given_up_with_what_to_do(repository, cache, monkeypatch, late):
    def wait(transfers, seconds, when):
        return concurrent.futures.wait(transfers, seconds + late, when)

    repository.ill = "endless"
    monkeypatch.setattr(jars, "FETCH_TIMEOUT_S", 1.0)
    monkeypatch.setattr(jars, "wait", wait)
    with pytest.raises(EnvironmentProblemError, match=r"fetching Kafka 4\.3\.1 took longer than 1 s and was given up"):
        cache.ensure_jars()
