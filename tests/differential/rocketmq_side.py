"""Scenarios on a real RocketMQ, through its own Java client."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from tests.differential.scenario import Answer, Fate, Stage
from tests.peer.client import PeerClient
from tests.peer.server import FAST_CHECKS, peer

_TOPIC = "real"
_QUEUES = 2


@contextlib.contextmanager
def rocketmq() -> Iterator[Callable[[str], Stage]]:
    """Start a RocketMQ; yield a function that makes the stage for a scenario of this name."""
    with peer(FAST_CHECKS) as running, PeerClient(running, "PeerClient", _TOPIC, _QUEUES) as client:
        yield lambda scenario: RocketMqStage(client, scenario)


class RocketMqStage(Stage):
    def __init__(self, client: PeerClient, scenario: str) -> None:
        self._client = client
        self._group = scenario
        self._names: list[str] = []
        self._refused: Counter[str] = Counter()
        self._present = False
        self.come_back()

    def _body(self, name: str) -> str:
        return f"{self._group}/{name}"

    def _send(self, name: str, answer: Answer, checks: list[Answer], immunity: int | None, *, lost: bool) -> None:
        self._names.append(name)
        self._client.ask(
            "send",
            group=self._group,
            body=self._body(name),
            answer=answer,
            checks=checks,
            immunity=None if immunity is None else str(immunity),
            lost=int(lost),
        )

    def decide(self, name: str, decision: Answer, *, stranger: bool = False) -> None:
        self._end(name, decision, group="stranger" if stranger else self._group, again=False)

    def answer_again(self, name: str, decision: Answer) -> None:
        self._end(name, decision, group=self._group, again=True)

    def _end(self, name: str, decision: Answer, *, group: str, again: bool) -> None:
        accepted = self._client.ask("end", body=self._body(name), decision=decision, group=group, again=again)
        self._refused[name] += not accepted

    def resume(self, name: str) -> None:
        self._refused[name] += not self._client.ask("resume", body=self._body(name))

    def leave(self) -> None:
        self._client.ask("leave", group=self._group)
        self._present = False

    def come_back(self) -> None:
        self._client.ask("join", group=self._group)
        self._present = True

    def checks(self, name: str) -> int:
        return int(self._client.ask("state")["checks"].get(self._body(name), 0))

    def fates(self) -> Mapping[str, Fate]:
        state = self._client.ask("state")
        return {
            name: Fate(
                state["copies"].get(self._body(name), 0),
                state["checks"].get(self._body(name), 0),
                state["set_aside"].get(self._body(name), 0),
                self._refused[name],
            )
            for name in self._names
        }

    def close(self) -> None:
        if self._present:
            self.leave()
