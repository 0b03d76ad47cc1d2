"""A real headless browser: Chromium with its DevTools protocol. Tests without a browser are skipped with a message."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Chromium prints its address within a second. A machine that starts it for the first time needs longer.
_START_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 60.0


class Browser:
    """One tab. `errors` has everything that the page logs as an error."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = socket
        self._loop = loop
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []
        #: Addresses that the page has asked for.
        self.requests: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])
            elif event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = self._loop.create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        event = await asyncio.wait_for(answer, _ANSWER_TIMEOUT_S)
        assert "error" not in event, event
        return event["result"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return asyncio.run_coroutine_threadsafe(self._call(method, parameters), self._loop).result(_ANSWER_TIMEOUT_S)

    def open(self, url: str, width: int = 1_200, height: int = 900, *, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait(self, script: str, timeout: float = 20.0) -> None:
        """Wait until an expression is true in the page. It may raise until the page is loaded."""
        script = f"(() => {{ try {{ return Boolean({script}) }} catch {{ return false }} }})()"
        deadline = time.monotonic() + timeout
        while not self.run(script):
            assert time.monotonic() < deadline, f"{script} did not become true:\n{self.text('body')}\n{self.errors}"
            time.sleep(0.1)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a picture of the whole page, or of what the window shows."""
        data = self.call("Page.captureScreenshot", format="webp", quality=70, captureBeyondViewport=whole)["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))


def find_browser() -> str:
    """Path of the browser, or a skip that says what is missing. TEST_BROWSER names one in another place."""
    found = os.environ.get("TEST_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("NO BROWSER: the status page is not tested in a browser here; apt-get install chromium")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, or skip the test if there is none."""
    program = find_browser()
    with tempfile.TemporaryDirectory(prefix="txbridge-browser-", ignore_cleanup_errors=True) as folder:
        # A page longer than the window gets a scroll bar, and its picture is narrower by the bar's width.
        flags = [
            "--headless=new",
            "--hide-scrollbars",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--remote-debugging-port=0",
        ]
        process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with _connected(_address(process)) as tab:
                yield tab
        finally:
            process.terminate()
            process.wait(120)
            if process.stderr is not None:
                process.stderr.close()


def _address(process: subprocess.Popen[str]) -> str:
    """Return the DevTools' host and port, which the browser prints. Its output has to be read on afterwards."""
    assert process.stderr is not None
    deadline, said = time.monotonic() + _START_TIMEOUT_S, []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"ws://([^/]+)/", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found[1]
        if time.monotonic() > deadline:
            break
    raise AssertionError(f"the browser did not start: {''.join(said)[-2_000:]}")


@contextmanager
def _connected(address: str) -> Iterator[Browser]:
    loop = asyncio.new_event_loop()
    ready: list[Browser] = []
    opened, done = threading.Event(), asyncio.Event()

    async def live() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json") as answer:
                [tab] = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                made = Browser(socket, loop)
                listening = loop.create_task(made.listen())
                ready.append(made)
                opened.set()
                await done.wait()
                listening.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=[live()], daemon=True)
    thread.start()
    assert opened.wait(_START_TIMEOUT_S), "the browser's DevTools do not answer"
    made = ready[0]
    for domain in ("Page", "Runtime", "Log", "Network"):
        made.call(f"{domain}.enable")
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(120)
        loop.close()
