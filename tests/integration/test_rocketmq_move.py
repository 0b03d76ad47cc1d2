"""The runbook of docs/how-to/move-from-rocketmq.md, by its own commands: a RocketMQ beside Kafka, there and back."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.peer.jars import jar_folder
from tests.peer.mqadmin import Mqadmin
from tests.peer.server import FAST_CHECKS, Peer, peer
from tests.support.command_line import run_txbridge
from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import Door, JavaClient, topic_of
from txbridge.errors import EnvironmentProblemError

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "move-from-rocketmq.md").read_text("utf-8")
#: The second one lets a program set a property of RocketMQ's.
VERSIONS = ("5.5.0", "4.9.8")
#: Transactions of each kind that a producer sends in each step.
EACH = 10
bridge = module_bridge("move", transaction_check_max=100)


class Runbook:
    """The commands of the page, with this machine's names in place of the page's."""

    def __init__(self, bridge: Bridge, old: Peer, mqadmin: Mqadmin, topic: str, folder: Path) -> None:
        self._bridge, self._mqadmin, self._folder = bridge, mqadmin, folder
        self._names = {"rocketmq:9876": old.names, "rocketmq:10911": old.broker, "kafka:9092": bridge.bootstrap_servers}
        self._names |= {"OrderPaid": topic, "billing": "listeners", "store/": f"{old.folder}/store/"}
        self._names["python "] = f"{sys.executable} "
        [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        (folder / "kafka_ids.py").write_text(self._meant(program))

    def run_section(self, heading: str) -> list[str]:
        """Run the commands below a heading of the page. Returns what each has printed."""
        section = PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
        return [self._run(self._meant(one)) for one in re.findall(r"^\$ (.+)$", section, re.MULTILINE)]

    def _meant(self, text: str) -> str:
        for name, here in self._names.items():
            text = text.replace(name, here)
        return text

    def _run(self, command: str) -> str:
        program, *words = shlex.split(command)
        if program == "txbridge":
            place = [f"--bootstrap-servers={self._bridge.bootstrap_servers}", f"--namespace={self._bridge.namespace}"]
            return run_txbridge(*words, *place).stdout
        if program == "mqadmin":
            given, _, file = command.removeprefix("mqadmin ").partition(" > ")
            told = self._mqadmin(*shlex.split(given))
            if file:
                (self._folder / file).write_text(told)
            return told
        return subprocess.run(command, shell=True, cwd=self._folder, capture_output=True, text=True, check=False).stdout


def open_in(told: list[str]) -> tuple[int, ...]:
    """What is open in RocketMQ, by the commands of step 4: unread, half, delayed, timed; and the half topic's end."""
    progress, half, read, broker = told
    assert re.search(r"^\S+OrderPaid +peer +3 ", progress, re.MULTILINE), f"this group has read nothing: {progress}"

    def number(pattern: str, text: str) -> int:
        [found] = re.findall(pattern, text, re.MULTILINE)
        return int(found)

    end = number(r"^peer +0 +\d+ +(\d+)", half)
    delayed = re.findall(r"scheduleMessageOffset_\d+ *: (\d+),(\d+)", broker)
    return (
        number(r"Consume Diff Total: (\d+)", progress),
        end - number(r"0:(\d+)", read),
        sum(int(last) - int(done) for done, last in delayed),
        number(r"timerCongestNum *: (\d+)", broker),
        end,
    )


@pytest.mark.long
def test_a_system_moves_and_comes_back_and_no_message_is_lost(bridge: Bridge, tmp_path: Path) -> None:
    topic, sent, heard = topic_of(bridge, "OrderPaid"), [], Counter[str]()
    try:
        jar_folder()
    except EnvironmentProblemError as problem:
        pytest.skip(f"NO JARS OF ROCKETMQ: the runbook of a move is not tested here; {problem}")
    with (
        peer(FAST_CHECKS | {"transactionCheckMax": 100}) as rocketmq,
        Mqadmin() as mqadmin,
        Door(bridge) as door,
        ExitStack() as stack,
    ):
        old, book = SimpleNamespace(address=rocketmq.names), Runbook(bridge, rocketmq, mqadmin, topic, tmp_path)
        mqadmin("updateTopic", "-c", "peer", "-t", topic, "-w", "4", "-r", "4", "-n", rocketmq.names)

        def start(version: str, where: object) -> JavaClient:
            return stack.enter_context(JavaClient(version, [where], "orders-service"))  # type: ignore[list-item]

        def start_consumer() -> JavaClient:
            consumer = start("5.1.4", old)
            consumer.ask("listen", rocketmq.names, topic, "")
            return consumer

        def text_of(answer: str) -> str:
            sent.append(f"{len(sent)}/{answer}")
            return sent[-1]

        def send(*clients: JavaClient) -> None:
            for client in clients:
                for answer, checks in [("commit", "commit"), ("rollback", "rollback"), ("unknown", "commit")] * EACH:
                    client.transaction(topic, text_of(checks), answer, checks)

        def send_slow(client: JavaClient) -> None:
            """A transaction that is open for ten checks, and a message that is delayed by half a minute."""
            client.transaction(topic, text_of("commit"), "unknown", "unknown," * 10 + "commit")
            client.ask("delayed", topic, text_of("commit"), "4")

        def await_all(consumer: JavaClient) -> None:
            committed = Counter(one for one in sent if one.endswith("commit"))

            def missing() -> list[Counter[str]]:
                in_kafka = Counter({body.decode(): count for body, count in bridge.visible(topic).items()})
                received = in_kafka + heard + Counter(filter(None, consumer.ask("heard")[0].split(";")))
                return [committed - received, received - committed]

            eventually(lambda: not any(missing()), 60, lambda: str(missing()))

        consumer = start_consumer()
        producers = [start(version, old) for version in VERSIONS]
        send(*producers)
        await_all(consumer)
        instances, groups, connected = book.run_section("1. Find what connects")
        assert len(re.findall(r"producer group \(orders-service\).* version=(?:409|5\d\d)", instances)) == 2
        assert "listeners" in groups
        assert "V5_1_4" in connected

        moved = start(VERSIONS[0], door)
        producers[0].stop()
        send(moved, producers[1])
        await_all(consumer)
        assert book.run_section("3. One instance of each service")[-1] == ""
        ids = [(tmp_path / f"{side}.ids").read_text().split() for side in ("rocketmq", "kafka")]
        assert [len(one) for one in ids] == [6 * EACH, 2 * EACH]

        # The old producer that stays would leave this one open, if it went too soon.
        send_slow(producers[1])
        due = str(int(time.time() * 1000) + 30_000)
        producers[1].ask("property", topic, text_of("commit"), "TIMER_DELIVER_MS", due)
        looks = [open_in(book.run_section("4. The others"))]
        last = start(VERSIONS[1], door)
        send(moved, last)

        def is_empty() -> bool:
            # For so long an open half message would be written again three times.
            time.sleep(3)
            looks.append(open_in(book.run_section("4. The others")))
            return not any(looks[-1][:-1]) and looks[-1] == looks[-2]

        eventually(is_empty, 60, lambda: str(looks))
        assert all(looks[0][1:-1]), looks
        assert looks[0][-1] < looks[-1][-1]
        await_all(consumer)
        producers[1].stop()
        heard.update(consumer.ask("heard")[0].split(";"))
        consumer.stop()

        consumer = start_consumer()
        send_slow(moved)
        assert "no open" not in book.run_section("The way back")[0].lower()
        send(*(start(version, old) for version in VERSIONS))
        last.stop()
        eventually(lambda: "no open" in book.run_section("The way back")[0].lower(), 60)
        await_all(consumer)
