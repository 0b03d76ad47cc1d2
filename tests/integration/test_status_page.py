"""The status page of a real worker: its content, the rights to act, and its look and updates in a real browser."""

from __future__ import annotations

import json
import resource
import secrets
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support import http
from tests.support.browser import Browser, browser
from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, Prepared, WorkerProcess, eventually
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


# --- without a browser -----------------------------------------------------------------------------------------------


def test_the_page_is_off_unless_asked_for(bridge: Bridge) -> None:
    port = free_port()
    bridge.worker(metrics_port=port)
    assert ask(port, "/status")[0] == ask(port, "/status.json")[0] == 404


def test_the_page_is_for_this_machine_alone_and_changes_nothing(bridge: Bridge) -> None:
    _, port = start(bridge)
    assert ask(port, "/status")[0] == 200
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


def history(port: int, target: str) -> dict[str, Any]:
    code, found = ask(port, f"/transaction.json?of={target}")
    assert code == 200, found
    return dict(found)


def where(prepared: Prepared) -> str:
    return f"{prepared.partition}:{prepared.offset}"


def test_the_whole_history_of_one_transaction(bridge: Bridge) -> None:
    _, port = start(bridge)
    topic = bridge.create_topic("real")
    with bridge.member("orders") as member:
        asked = bridge.prepare(topic, b"asked", group="orders")
        eventually(lambda: len(member.checks(asked)) == 1)
        bridge.end([f"{asked.entry(UNKNOWN, 1)},no%20idea"], asked.partition, group="orders", source="check")
        eventually(lambda: len(member.checks(asked)) == 2)
        forged = f"{asked.offset},{'0' * 32},{COMMIT}"
        bridge.end([forged], asked.partition, group="orders")
        bridge.end([asked.entry(COMMIT, 2)], asked.partition, group="orders", source="check")
        bridge.wait_visible(topic, [b"asked"])
        given_up = bridge.prepare(topic, b"given up", group="orders")
        eventually(bridge.discarded)
    for target in (where(asked), asked.transaction_id):
        found = history(port, target)
        assert (found["state"], found["group"], found["missing"]) == ("delivered", "orders", [])
        what = [(step["what"], step["detail"].partition(", END")[0].partition(", OP")[0]) for step in found["steps"]]
        assert [one[0] for one in what] == [
            "prepared",
            "check 1 sent",
            "END unknown",
            "check 2 sent",
            "END commit",
            "END commit",
            "delivered",
        ]
        details = [step["detail"] for step in found["steps"]]
        assert details[2].endswith("answer to check 1: no idea")
        assert details[4].endswith("(refused: wrong transaction id)")
        assert asked.transaction_id not in json.dumps(found)
        times = [step["at"] for step in found["steps"]]
        assert times == sorted(times)
    found = history(port, where(given_up))
    assert found["state"] == "discarded"
    last = [step["what"] for step in found["steps"]][-3:]
    assert sorted(last) == ["check 3 sent", "discarded", "set aside"]
    code, answer = ask(port, "/transaction.json?of=0:999999")
    assert (code, answer["error"][:40]) == (404, "there is no half message at 0:999999: HA")
    code, answer = ask(port, f"/transaction.json?of={'F' * 32}")
    assert code == 404
    assert "F" * 9 not in answer["error"]
    assert ask(port, "/transaction.json?of=nonsense")[0] == 404


def listed(port: int, cause: str = "") -> dict[str, Any]:
    """Wait for the reading, and return the open messages of the namespace."""
    found: dict[str, Any] = {}

    def is_read() -> bool:
        found.update(ask(port, f"/open.json?cause={cause}")[1])
        return found["read"] is not None and not found["reading"]

    eventually(is_read, 60)
    return dict(found["read"])


def test_every_open_message_of_the_namespace_is_listed_whoever_serves_its_partition(bridge: Bridge) -> None:
    _, port = start(bridge, transaction_timeout=60_000, transaction_check_max=15)
    bridge.worker(wait=1, transaction_timeout=60_000, transaction_check_max=15)
    topic, missing = bridge.create_topic("real"), f"{bridge.namespace}.missing"
    pending = [bridge.prepare(topic, b"1", group="one", partition=0), bridge.prepare(topic, b"2", partition=1)]
    held = [bridge.prepare(missing, b"held", partition=partition) for partition in (0, 1)]
    for one in held:
        bridge.decide(one, COMMIT)
    eventually(lambda: [bridge.parked_states(partition).count("held") for partition in (0, 1)] == [1, 1])
    found: dict[str, Any] = {}

    def all_are_there() -> bool:
        found.update(listed(port))
        return found["total"] == 4 and found["states"] == {"pending": 2, "held": 2}

    # The page reads at most every ten seconds.
    eventually(all_are_there, 60, lambda: str(found))
    assert (found["partitions"], found["unread"], found["warnings"]) == (2, {}, [])
    assert {one["of"] for one in found["messages"]} == {where(one) for one in (*pending, *held)}
    causes = {one["text"]: one for one in found["causes"]}
    assert {text.partition(";")[0] for text in causes} == {
        f"held for topic {missing}: topic {missing} does not exist",
        "pending, group one: not asked yet",
        "pending, group group: not asked yet",
    }
    only = listed(port, next(one["name"] for text, one in causes.items() if text.startswith("held")))
    assert {one["of"] for one in only["messages"]} == {where(one) for one in held}
    assert {one["trouble"] for one in only["messages"]} == {f"topic {missing} does not exist"}
    for one in (*pending, *held):
        assert one.transaction_id not in json.dumps([found, only])


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that have not ended."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_p8_six_people_who_look_up_transactions_have_one_process_and_no_memory_of_the_worker(bridge: Bridge) -> None:
    worker, port = start(bridge, transaction_timeout=60_000)
    topic = bridge.create_topic("real")
    bridge.prepare_many(topic, [b"x" * 100] * 20_000)
    eventually(lambda: sum(one["pending"] or 0 for one in status(port)["partitions"]["here"]) == 20_000)
    status_of, stop, seen, before = Counter[int](), threading.Event(), [0], memory(worker.pid)

    # Each looks for an id that does not exist, in all of HALF.
    def look() -> None:
        while not stop.is_set():
            status_of[ask(port, f"/transaction.json?of={secrets.token_hex(16).upper()}")[0]] += 1

    people = [threading.Thread(target=look) for _ in range(6)]
    for person in people:
        person.start()
    try:
        while status_of[404] < 3:
            seen.append(len(children(worker.pid)))
            one = bridge.prepare(topic, b"committed")
            bridge.decide(one, COMMIT)
            bridge.wait_outcome(one, "commit")
    finally:
        stop.set()
        for person in people:
            person.join()
    assert max(seen) == 1
    assert set(status_of) == {404, 503}
    assert memory(worker.pid) - before < 20_000_000
    eventually(lambda: children(worker.pid) == [])


# --- in a browser ----------------------------------------------------------------------------------------------------


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
        # A transaction is found by its coordinates.
        page.run(
            f"document.querySelector('#of').value = {json.dumps(evil)}; document.querySelector('#find').requestSubmit()"
        )
        page.wait("document.querySelector('#summary').textContent.includes('is not the address of a half message')")
        page.run(
            f"document.querySelector('#of').value = '{where(stuck)}'; document.querySelector('#find').requestSubmit()"
        )
        page.wait("document.querySelectorAll('#history li').length === 1")
        assert "prepared" in page.text("#history")
        bridge.end([f"{stuck.entry(COMMIT)},,{quote(evil)}"], stuck.partition, group="orders")
        bridge.wait_visible(topic, [b"stuck"])
        # An answer is kept for a second.
        eventually(lambda: history(port, where(stuck))["state"] == "delivered")
        page.run("document.querySelector('#find').requestSubmit()")
        page.wait("document.querySelectorAll('#history li').length === 3")
        assert evil in page.text("#history")
        assert page.run("window.hacked") is None
        # The whole namespace: choose a cause, and look at one message.
        lost = bridge.prepare_many(topic, [b"lost 0", b"lost 1"], group="lost")
        page.wait(
            "[...document.querySelectorAll('#causes button')].some(one => one.innerText.includes('group lost'))", 60
        )
        page.run(
            "[...document.querySelectorAll('#causes button')].find(one => one.innerText.includes('group lost')).click()"
        )
        page.wait("document.querySelectorAll('#messages button.where').length === 2")
        page.run("document.querySelector('#messages button.where').click()")
        page.wait("document.querySelector('#summary').textContent.includes('group lost')")
        assert any(where(one) in page.text("#summary") for one in lost)
        bridge.decide_many(lost, ROLLBACK, group="lost")
        page.wait(
            "![...document.querySelectorAll('#causes button')].some(one => one.innerText.includes('group lost'))", 60
        )
        assert page.run("window.hacked") is None
        # The browser logs the answer to a name that is none; there is no other error.
        assert all("status of 404" in one for one in page.errors), page.errors
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
    page.wait("document.querySelectorAll('#messages button.where').length === 100", 60)
    page.wait("document.querySelector('#read').textContent.includes('110 messages (110 scheduled)')", 60)
    page.wait("document.querySelectorAll('#partitions td').length > 6")
    assert tile(page, "scheduled") == "110"
    # Four screens of a phone, and some hundred pixels.
    assert page.run("document.documentElement.scrollHeight") < 4_000


def _assert_readable(page: Browser, url: str) -> None:
    """Expect the page to fit wide and narrow screens; on a phone nothing reaches over the side."""
    for name, width, height in (("desktop", 1_200, 900), ("phone", 390, 844)):
        page.open(url, width, height, phone=name == "phone")
        page.wait("document.querySelectorAll('#plots svg').length === 6")
        assert page.run("document.documentElement.scrollWidth") <= width
        page.wait("document.querySelectorAll('#messages button.where').length >= 1", 60)
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
