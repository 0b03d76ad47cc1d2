"""The chaos cells of the front door: doors, a worker and Kafka die behind its clients.

Some of RocketMQ's own clients, of either protocol, are there all the time. Others start after a death, send, and leave.
A check may reach any client of a group, and all know the answer, as an application does by its database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.chaos.cells import CELLS, PARTITIONS, Cell, Run
from tests.chaos.client import FAULT_OVER, intended
from tests.chaos.store import Plan
from tests.support.harness import Bridge, eventually
from tests.support.rocketmq_door import Client, Door, GrpcClient, JavaClient, topic_of
from txbridge import LocalTransactionState
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

#: Producer group of the remoting protocol. That of gRPC is the topic.
_GROUP = "chaos"
#: Transactions of a client that starts after a death.
_VISIT = 100

_ANSWERS = {
    LocalTransactionState.COMMIT_MESSAGE: "commit",
    LocalTransactionState.ROLLBACK_MESSAGE: "rollback",
    LocalTransactionState.UNKNOWN: "unknown",
}


class _Sender(threading.Thread):
    """One client, which sends one transaction after the other until it has sent some, and `is_over`."""

    def __init__(self, run: DoorRun, name: str, client: Client, least: int, is_over: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._run, self._client, self._least, self._is_over = run, client, least, is_over
        self._pipe = threading.Lock()
        self.done = 0
        self.stopped = False

    def run(self) -> None:
        for number in count():
            if number >= self._least and self._is_over():
                break
            answer, commits = intended(number)
            final = "commit" if commits else "rollback"
            told = ["error"]
            # A SEND that has failed at all doors is sent again as another message, as an application does.
            while told[0] == "error" and not self.stopped:
                with self._pipe:
                    told = self._client.try_(
                        "transaction", self._run.topic, f"{number}/{final}", _ANSWERS[answer], final, "", "", ""
                    )
            if self.stopped:
                return
            self.done += 1
        (self._run.folder / f"{self.name}.done").touch()

    def decisions(self) -> dict[str, bool]:
        """The results of its local transactions and of its answers to checks, by the client's id."""
        names_id = "message_id" if isinstance(self._client, GrpcClient) else "transaction_id"
        with self._pipe:
            said = self._client.sent()
            said += [(one[names_id], one["text"]) for one in self._client.checks()]
        return {name: text.endswith("/commit") for name, text in said}


class DoorRun(Run):
    """Two workers, two doors, and RocketMQ's clients."""

    def __init__(self, kafka: EmbeddedKafka, bridge: Bridge, folder: Path, transactions: int) -> None:
        self._stack = ExitStack()
        #: Decisions of the clients that have left.
        self._left: dict[str, bool] = {}
        super().__init__(kafka, bridge, folder, transactions)

    def _start(self, transactions: int) -> None:
        # RocketMQ's clients refuse names with a dot.
        self.topic = topic_of(self.bridge, "real", PARTITIONS)
        self._ports = [[free_port() for _ in range(3)] for _ in range(2)]
        self.doors = [self._door(number) for number in range(2)]
        stay = [JavaClient("5.3.2", self.doors, _GROUP), GrpcClient("java", self.doors, [self.topic])]
        is_over = (self.folder / FAULT_OVER).exists
        self.clients = [
            _Sender(self, f"client-{number}", self._stack.enter_context(one), transactions // len(stay), is_over)
            for number, one in enumerate(stay)
        ]
        self.store = self
        for sender in self.clients:
            sender.start()

    def _door(self, number: int) -> Door:
        port, grpc_port, metrics_port = self._ports[number]
        advertised = "--advertised=" + ",".join(f"127.0.0.1:{ports[0]}" for ports in self._ports)
        grpc = f"--grpc-listen=127.0.0.1:{grpc_port}"
        made = Door(self.bridge, advertised, grpc, listen=f"127.0.0.1:{port}", metrics_port=metrics_port)
        return self._stack.enter_context(made)

    def restart_door(self, number: int) -> None:
        """Start a dead door again, and wait until clients have come back to it.

        A client that does not come back would leave its work to the other door forever.
        """
        self.doors[number] = self._door(number)
        stored = lambda: self.doors[number].metrics()["send_seconds_count"]  # noqa: E731
        eventually(stored, 60, "the door that was started again gets no messages")

    def let_visit(self, made: Sequence[Client]) -> None:
        """Let clients start, send and leave."""
        with ExitStack() as stack:
            senders = [
                _Sender(self, f"visitor-{number}", stack.enter_context(one), _VISIT, lambda: True)
                for number, one in enumerate(made)
            ]
            for one in senders:
                one.start()
            try:
                for one in senders:
                    eventually(lambda one=one: one.done, 20, f"{one.name} cannot send after a death")  # type: ignore[misc]
                    one.join(300)
                    assert one.done == _VISIT
                    self._left |= one.decisions()
            finally:
                for one in senders:
                    one.stopped = True

    @property
    def count(self) -> int:
        return sum(one.done for one in self.clients)

    def decisions(self) -> dict[str, bool]:
        halves = [dict(one.headers() or ()) for one in self.bridge.read(self.bridge.names.half)]
        ids = {one["ROCKETMQ_UNIQ_KEY"].decode(): one["UNIQ_KEY"].decode() for one in halves}
        said = self._left | {name: commits for one in self.clients for name, commits in one.decisions().items()}
        return {ids[name]: commits for name, commits in said.items()}

    def plans(self) -> dict[str, Plan]:
        """Plans with one message for each transaction, due at once."""
        return {}

    @property
    def topics(self) -> list[str]:
        return [self.topic]

    def told(self) -> list[tuple[str, str, bool]]:
        return []

    def close(self) -> None:
        for one in self.clients:
            one.stopped = True
        for one in self.clients:
            one.join(120)
        self._stack.close()


def _doors_killed_in_turns(run: Run) -> None:
    assert isinstance(run, DoorRun)
    for number in (0, 1, 0, 1):
        run.doors[number].kill()
        run.let_visit([JavaClient("4.9.8", run.doors, _GROUP), GrpcClient("python", run.doors, [run.topic])])
        run.restart_door(number)


def _worker_and_kafka_die(run: Run) -> None:
    assert isinstance(run, DoorRun)
    for fault in ("worker kill -9", "kafka kill -9", "kafka terminate"):
        CELLS[fault].fault(run)
        run.let_visit([JavaClient("5.5.0", run.doors, _GROUP), GrpcClient("java-5.0.8", run.doors, [run.topic])])


DOOR_CELLS = {
    "doors kill -9 in turns": Cell(_doors_killed_in_turns, make=DoorRun),
    "worker and kafka die behind doors": Cell(_worker_and_kafka_die, make=DoorRun),
}
