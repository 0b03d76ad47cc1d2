"""Pictures of a worker's status page for docs/health.md: `python -m tests.support.status_pictures`."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.browser import browser
from tests.support.harness import COMMIT, ROLLBACK, Bridge
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

FOLDER = Path(__file__).parents[2] / "docs" / "images"
#: Seconds of traffic, after which the plots show something.
TRAFFIC_S = 75.0


def main() -> None:
    with EmbeddedKafka() as kafka, Bridge(kafka.bootstrap_servers, "shop", partitions=4) as bridge:
        port, topic, stop = free_port(), bridge.create_topic("orders.placed"), threading.Event()
        slow = {"transaction_timeout": 6_000, "transaction_check_interval": 30_000, "transaction_check_max": 15}
        bridge.worker(metrics_port=port, status_page="read", **slow)

        def traffic() -> None:
            size = 40
            while not stop.wait(0.4):
                size = 40 + (size * 7) % 90
                prepared = bridge.prepare_many(topic, [b"placed"] * size, group="orders")
                bridge.decide_many(prepared[3:], COMMIT, group="orders")
                bridge.decide_many(prepared[:3], ROLLBACK, group="orders")

        with bridge.member("orders"), bridge.member("payments"):
            thread = threading.Thread(target=traffic)
            thread.start()
            bridge.prepare_many(topic, [b"paid"] * 5, group="payments")
            bridge.prepare_many(topic, [b"sent"] * 12, group="shipping")
            held = bridge.prepare(f"{bridge.namespace}.invoices", group="orders")
            bridge.decide(held, COMMIT, group="orders")
            stop.wait(TRAFFIC_S)
            with browser() as page:
                for name, width in (("desktop", 1_100), ("phone", 390)):
                    page.open(f"http://127.0.0.1:{port}/status", width, 900, phone=name == "phone")
                    page.wait("document.querySelectorAll('#plots svg').length === 6")
                    # A cause with few messages is opened: the page is long enough already.
                    page.wait("document.querySelectorAll('#causes button').length > 3")
                    causes = "[...document.querySelectorAll('#causes button')]"
                    page.run(f"{causes}.find(one => one.innerText.includes('held')).click()")
                    page.wait("document.querySelectorAll('#messages button.where').length === 1")
                    page.run(f"document.querySelector('#of').value = '{held.partition}:{held.offset}'")
                    page.run("document.querySelector('#find').requestSubmit()")
                    page.wait("document.querySelectorAll('#history li').length === 3")
                    page.screenshot(FOLDER / f"status-{name}.webp")
            stop.set()
            thread.join()


if __name__ == "__main__":
    main()
