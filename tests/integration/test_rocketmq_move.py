"""The runbook of docs/how-to/move-from-rocketmq.md, by its own commands: a RocketMQ beside Kafka, there and back."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.peer.mqadmin import mqadmin
from tests.peer.server import FAST_CHECKS, Peer, peer
from tests.support.command_line import run_txbridge
from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import Door, JavaClient, topic_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "move-from-rocketmq.md").read_text("utf-8")
VERSIONS = ("4.9.8", "5.5.0")
bridge = module_bridge("move", transaction_check_max=100)


class Runbook:
    """The commands of the page, with this machine's names in place of the page's."""

    def __init__(self, bridge: Bridge, old: Peer, topic: str, folder: Path) -> None:
        self._bridge, self._old, self._folder = bridge, old, folder
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
            told = mqadmin(*shlex.split(given))
            if file:
                (self._folder / file).write_text(told)
            return told
        return subprocess.run(command, shell=True, cwd=self._folder, capture_output=True, text=True, check=False).stdout


def end_if_empty(told: list[str]) -> int:
    """The end of RocketMQ's half topic, if it is read up to there and the consumers have read all; else a negative."""
    progress, half, offsets, *_ = told
    [end] = re.findall(r"^peer +0 +0 +(\d+)", half, re.MULTILINE)
    is_read = "Consume Diff Total: 0" in progress and f"0:{end}" in offsets.replace(" ", "")
    return int(end) if is_read else -int(end)


@pytest.mark.long
@pytest.mark.skipif("ROCKETMQ_MOVE" not in os.environ, reason="mqadmin takes a quarter of an hour: ROCKETMQ_MOVE=1")
def test_a_system_moves_and_comes_back_and_no_message_is_lost(bridge: Bridge, tmp_path: Path) -> None:
    topic, sent = topic_of(bridge, "OrderPaid"), []
    with peer(FAST_CHECKS | {"transactionCheckMax": 100}) as rocketmq, Door(bridge) as door, ExitStack() as stack:
        old, book = SimpleNamespace(address=rocketmq.names), Runbook(bridge, rocketmq, topic, tmp_path)
        mqadmin("updateTopic", "-c", "peer", "-t", topic, "-w", "4", "-r", "4", "-n", rocketmq.names)

        def start(version: str, where: object) -> JavaClient:
            return stack.enter_context(JavaClient(version, [where], "orders-service"))  # type: ignore[list-item]

        def send(*clients: JavaClient, checks: str = "commit") -> None:
            for client in clients:
                for answer in ("commit", "rollback", "unknown"):
                    text = f"m{len(sent)} {answer}"
                    client.transaction(topic, text, answer, checks if answer == "unknown" else "unknown")
                    sent.append(text)

        consumer = start("5.1.4", old)
        consumer.ask("listen", rocketmq.names, topic, "")
        before = [start(version, old) for version in VERSIONS]
        send(*before)
        # The name server knows the group's topic of retries within half a minute.
        eventually(lambda: "V5_1_4" in book.run_section("1. Find what connects")[2], 90)
        producers, groups, _ = book.run_section("1. Find what connects")
        assert "producer group (orders-service)" in producers
        assert "listeners" in groups

        moved = start(VERSIONS[0], door)
        for _ in range(3):
            send(moved, before[1])
        eventually(lambda: bridge.visible(topic).total() == 6, 60)
        assert book.run_section("3. One instance of each service")[-1] == ""
        ids = [(tmp_path / f"{side}.ids").read_text().split() for side in ("rocketmq", "kafka")]
        assert (len(ids[0]), len(ids[1])) == (10, 6)

        send(moved, start(VERSIONS[1], door))
        # An old producer that goes too soon leaves this one open.
        send(before[1], checks="unknown," * 60 + "commit")
        ends = [end_if_empty(book.run_section("4. The others")) for _ in range(2)]
        assert abs(ends[0]) < abs(ends[1]), "an open half message is written again at each check"
        while ends[-1] < 0 or ends[-1] != ends[-2]:
            ends.append(end_if_empty(book.run_section("4. The others")))
            assert len(ends) < 20, ends

        back = [start(version, old) for version in VERSIONS]
        send(*back)
        eventually(lambda: "no open" in book.run_section("The way back")[0].lower(), 60)
        committed = Counter(one for one in sent if not one.endswith("rollback"))

        def received() -> Counter[str]:
            in_kafka = Counter({body.decode(): count for body, count in bridge.visible(topic).items()})
            return in_kafka + Counter(consumer.ask("heard")[0].split(";"))

        eventually(lambda: received() == committed, 60, lambda: str(committed - received()))
