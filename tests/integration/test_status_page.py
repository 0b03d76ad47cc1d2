"""The status page of a real worker: its content, the rights to act, and its look and updates in a real browser."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import pytest

from tests.support import http
from tests.support.browser import Browser, browser
from tests.support.harness import COMMIT, UNKNOWN, Bridge, Prepared, WorkerProcess, eventually
from txbridge.embedded.ports import free_port


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, Any]:
    """Status and JSON of the answer; status 0 while nothing listens."""
    answer = http.ask_if_there(f"http://{host}:{port}{path}")
    return answer.status, json.loads(answer.text) if answer.text.startswith("{") else answer.text


def status(port: int) -> dict[str, Any]:
    code, found = ask(port, "/status.json")
    assert code == 200
    return dict(found)


def start(bridge: Bridge, **options: object) -> tuple[WorkerProcess, int]:
    port = free_port()
    worker = bridge.worker(metrics_port=port, status_page="read", **options)
    eventually(lambda: ask(port, "/readyz")[0] == 200)
    return worker, port


def test_the_page_is_off_unless_asked_for(bridge: Bridge) -> None:
    port = free_port()
    bridge.worker(metrics_port=port)
    assert ask(port, "/status")[0] == ask(port, "/status.json")[0] == 404


def test_the_page_is_for_this_machine_alone_and_changes_nothing(bridge: Bridge) -> None:
    _, port = start(bridge)
    page, other = (http.ask(f"http://127.0.0.1:{port}{path}") for path in ("/status", "/livez"))
    assert page.status == 200
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    assert "script-src 'none'" in other.headers["Content-Security-Policy"]
    assert http.ask(urllib.request.Request(f"http://127.0.0.1:{port}/status.json", data=b"{}")).status == 405
    # 127.0.0.2 is also this machine, but not the address that the worker was given.
    assert ask(port, "/status", host="127.0.0.2")[0] == 0


def test_what_is_open_who_is_alive_and_what_is_elsewhere(bridge: Bridge) -> None:
    _, port = start(bridge, transaction_timeout=60_000, transaction_check_max=15)
    topic = bridge.create_topic("real")
    with bridge.member("alive"):
        bridge.prepare(topic, b"waits", group="alive", partition=0)
        bridge.prepare_many(topic, [b"1", b"2"], group="dead", partition=0)
        held = bridge.prepare(f"{bridge.namespace}.missing", group="alive", partition=0)
        bridge.decide(held, COMMIT, group="alive")

        def groups() -> dict[str, tuple[int, int, int | None]]:
            rows = status(port)["groups"]
            return {one["group"]: (one["pending"], one["held"], one["alive"]) for one in rows}

        eventually(lambda: groups() == {"alive": (1, 1, 1), "dead": (2, 0, 0)}, 40, "not so")
    now = status(port)
    assert [(one["partition"], one["serving"]) for one in now["partitions"]["here"]] == [(0, True), (1, True)]
    assert now["partitions"]["here"][0] == {
        "partition": 0,
        "serving": True,
        "error": None,
        "end_lag": 0,
        "pending": 3,
        "held": 1,
        "scheduled": 0,
        "discarded": 0,
    }
    assert (now["partitions"]["total"], now["partitions"]["elsewhere"], now["ready"]) == (2, [], [])
    # The first check is 60 s after birth, with a resolution of 10 s.
    assert (now["schedule"]["within"]["10"], now["schedule"]["within"]["600"]) == (0, 3)
    assert now["totals"]["committed"] == 1
    assert now["totals"]["delivered"] == 0
    # With two workers each shows its own partition, and the place of the other one.
    bridge.worker(wait=1)
    eventually(lambda: len(status(port)["partitions"]["here"]) == 1, 40)
    eventually(lambda: status(port)["partitions"]["elsewhere"], 40)
    now = status(port)
    [other] = now["partitions"]["elsewhere"]
    assert sorted([*other["partitions"], now["partitions"]["here"][0]["partition"]]) == [0, 1]


def where(prepared: Prepared) -> str:
    return f"{prepared.partition}:{prepared.offset}"


def listed(port: int, cause: str = "") -> dict[str, Any]:
    """Wait for the owners' answers, and return the open messages of this worker."""
    found: dict[str, Any] = {}

    def is_read() -> bool:
        found.update(ask(port, f"/open.json?cause={cause}")[1])
        return not found["reading"]

    eventually(is_read, 60)
    return dict(found["read"])


def test_every_open_message_of_this_worker_is_listed_with_what_to_do(bridge: Bridge) -> None:
    _, port = start(bridge, transaction_timeout=60_000, transaction_check_max=15)
    topic, missing = bridge.create_topic("real"), f"{bridge.namespace}.missing"
    pending = [bridge.prepare(topic, b"1", group="one", partition=0), bridge.prepare(topic, b"2", partition=1)]
    held = [bridge.prepare(missing, b"held", partition=partition) for partition in (0, 1)]
    for one in held:
        bridge.decide(one, COMMIT)
    found: dict[str, Any] = {}

    def all_are_there() -> bool:
        found.update(listed(port))
        return found["total"] == 4 and found["states"] == {"pending": 2, "held": 2}

    eventually(all_are_there, 60, lambda: str(found))
    assert found["unread"] == []
    assert {one["of"] for one in found["messages"]} == {where(one) for one in (*pending, *held)}
    causes = {one["text"]: one for one in found["causes"]}
    text = f"held for topic {missing}: topic {missing} does not exist"
    assert {one.partition(":")[0] for one in causes} == {
        text.partition(":")[0],
        "pending, group one",
        "pending, group group",
    }
    assert causes[text]["remedy"].startswith("create the topic")
    only = listed(port, causes[text]["name"])
    assert {one["of"] for one in only["messages"]} == {where(one) for one in held}
    for one in (*pending, *held):
        assert one.transaction_id not in json.dumps([found, only])


@pytest.fixture
def page() -> Iterator[Browser]:
    with browser() as tab:
        yield tab


@contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """Reverse proxy that serves a worker under a path prefix and removes the prefix; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            answer = http.ask_if_there(f"http://127.0.0.1:{port}{self.path.removeprefix(prefix)}")
            if answer.status:
                self._reply(answer.status, answer.headers["Content-Type"], answer.body)
            else:
                self._reply(502, "text/plain", b"the worker is away")

        def _reply(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        server.server_close()


def tile(page: Browser, name: str) -> str:
    script = f"[...document.querySelectorAll('.tile')].find(one => one.innerText.endsWith('{name}'))?.innerText ?? ''"
    return str(page.run(script)).split("\n")[0]


@pytest.mark.long
def test_the_page_lives_behind_a_path_prefix_and_needs_nothing_but_its_worker(bridge: Bridge, page: Browser) -> None:
    worker, port = start(bridge, transaction_timeout=60_000)
    topic = bridge.create_topic("orders.placed")
    with proxy(port, "/team/bridge") as address, bridge.member("orders"):
        page.open(f"{address}/status")
        page.wait("document.querySelector('#ready').textContent === 'ready'")
        assert tile(page, "pending") == "0"
        assert "partitions 0, 1 of 2" in page.text("#scope")
        # The page updates without being loaded again.
        page.run("window.still = true")
        stuck = bridge.prepare(topic, b"stuck", group="orders")
        evil = "<img src=x onerror=window.hacked=true>"
        bridge.produce(bridge.names.half, value=b"x", headers=bridge.half_headers(topic, "evil-group"), partition=0)
        page.wait("[...document.querySelectorAll('.tile')][0].innerText.startsWith('2')")
        assert page.run("window.still") is True
        assert page.run("document.querySelectorAll('#plots svg polyline').length") == 6
        bridge.decide_many(
            bridge.prepare_many(topic, [b"%d" % number for number in range(500)], group="orders"),
            COMMIT,
            group="orders",
        )
        page.wait("document.querySelector('#plots').innerText.includes('at most')")
        page.wait("[...document.querySelectorAll('.tile')].at(-1).innerText.startsWith('500')")
        # Others' texts stay texts. Choose a cause, and see what is to be done.
        bridge.end([f"{stuck.entry(UNKNOWN)},,{quote(evil)}"], stuck.partition, group="orders")
        lost = bridge.prepare_many(f"{bridge.namespace}.{'x' * 60}", [b"lost 0", b"lost 1"], group="lost")
        bridge.decide_many(lost, COMMIT, group="lost")
        button = (
            "[...document.querySelectorAll('#causes button')].find(one => one.innerText.includes('does not exist'))"
        )
        page.wait(f"{button} !== undefined", 60)
        assert "create the topic" in str(page.run(f"{button}.innerText"))
        page.run(f"{button}.click()")
        page.wait("document.querySelectorAll('#messages li').length === 2")
        assert {str(page.run(f"document.querySelectorAll('#messages code')[{at}].innerText")) for at in (0, 1)} == set(
            map(where, lost)
        )
        # What waits for a person is not green.
        page.wait("document.querySelector('#ready').textContent === 'ready, 2 held'")
        assert page.run("document.querySelector('#ready').className") == "warn"
        assert page.run("window.hacked") is None
        assert page.errors == []
        assert {one.rpartition("/")[0] for one in page.requests} == {address}
        _assert_readable(page, f"{address}/status")
        worker.stop()
        page.wait("document.body.classList.contains('stale')")
        assert "The worker does not answer" in page.text("#stale")


@pytest.mark.long
def test_with_many_scheduled_messages_alone_the_page_stays_short_on_a_phone(bridge: Bridge, page: Browser) -> None:
    _, port = start(bridge)
    topic, later = bridge.create_topic("real"), b"%d" % (time.time_ns() // 1_000_000 + 3_600_000)
    for number in range(110):
        one = bridge.prepare(topic, b"%d" % number, extra=[("TXB_DELIVER_AT", later)])
        bridge.decide(one, COMMIT)
    eventually(lambda: sum(one["scheduled"] or 0 for one in status(port)["partitions"]["here"]) == 110)
    page.open(f"http://127.0.0.1:{port}/status", 390, 844, phone=True)
    page.wait("document.querySelectorAll('#messages code').length === 100", 60)
    page.wait("document.querySelector('#read').textContent.includes('110 messages (110 scheduled)')", 60)
    page.wait("document.querySelectorAll('#partitions td').length > 6")
    assert tile(page, "scheduled") == "110"
    # Four screens of a phone, and some hundred pixels.
    assert page.run("document.documentElement.scrollHeight") < 4_000
    assert page.errors == []
    # A script that came into the page would not run.
    page.run("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = true'}))")
    assert page.run("window.hacked") is None


def _assert_readable(page: Browser, url: str) -> None:
    """Expect the page to fit wide and narrow screens; on a phone nothing reaches over the side."""
    for name, width, height in (("desktop", 1_200, 900), ("phone", 390, 844)):
        page.open(url, width, height, phone=name == "phone")
        page.wait("document.querySelectorAll('#plots svg').length === 6")
        assert page.run("document.documentElement.scrollWidth") <= width
        page.wait("document.querySelectorAll('#messages code').length >= 1", 60)
        # No number is hidden beyond the edge of its table.
        page.wait("document.querySelectorAll('#groups td').length > 6")
        assert page.run("[...document.querySelectorAll('.wide')].every(one => one.scrollWidth <= one.clientWidth)"), (
            name
        )
        if name == "phone":
            # On a phone a row is a block, in which the column's name is beside each number.
            assert page.run(
                "[...document.querySelectorAll('#groups tr:last-child td')]"
                ".map(one => getComputedStyle(one, '::before').content.replaceAll('\"', ''))"
            ) == ["group", "alive", "pending", "oldest", "held", "scheduled", "discarded"]
        # Elements for a thumb are large enough.
        assert (
            page.run(
                "Math.min(...[...document.querySelectorAll('button')].map(one => one.offsetHeight).filter(Boolean))"
            )
            >= 36
        )
