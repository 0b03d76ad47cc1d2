"""The chaos cells of the front door: one of two is killed and started again.

RocketMQ's own Java clients go on with the other one and come back to the first.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from txbridge_rocketmq.identity import transaction_id

from tests.chaos.cells import PARTITIONS, Cell, Run
from tests.chaos.client import intended
from tests.chaos.store import Plan
from tests.support.harness import Bridge, eventually
from tests.support.rocketmq_door import SECRET, Client, Door, GrpcClient, JavaClient, topic_of
from txbridge import LocalTransactionState
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

_GROUP = "chaos"
_CLIENTS = 3


_ANSWERS = {
    LocalTransactionState.COMMIT_MESSAGE: "commit",
    LocalTransactionState.ROLLBACK_MESSAGE: "rollback",
    LocalTransactionState.UNKNOWN: "unknown",
}


class _Sender(threading.Thread):
    """One client, which sends one transaction after the other."""

    def __init__(self, run: DoorRun, name: str, client: Client, numbers: range) -> None:
        super().__init__(name=name, daemon=True)
        self._run, self._client, self._numbers = run, client, numbers
        self._pipe = threading.Lock()
        self.done = 0
        self.stopped = False

    def run(self) -> None:
        for number in self._numbers:
            answer, commits = intended(number)
            told = ["error"]
            # A SEND that has failed at all doors is sent again as another message, as an application does.
            while told[0] == "error" and not self.stopped:
                final = "commit" if commits else "rollback"
                with self._pipe:
                    told = self._client.try_(
                        "transaction", self._run.topic, str(number), _ANSWERS[answer], final, "", "", ""
                    )
            if self.stopped:
                return
            self.done += 1
        (self._run.folder / f"{self.name}.done").touch()

    def decisions(self) -> dict[str, bool]:
        """The results of its local transactions and of its answers to checks, by transaction id."""
        with self._pipe:
            said = self._client.sent()
            said += [(one[self._run.names_id], one["text"]) for one in self._client.checks()]
        return {self._run.id_of(name): intended(int(text))[1] for name, text in said}


class DoorRun(Run):
    """Two workers, two doors, and RocketMQ's clients."""

    def __init__(self, kafka: EmbeddedKafka, bridge: Bridge, folder: Path, transactions: int, *, grpc: bool) -> None:
        self._grpc = grpc
        #: Name of the transaction's id in a client's own rows of checks.
        self.names_id = "message_id" if grpc else "transaction_id"
        self._stack = ExitStack()
        super().__init__(kafka, bridge, folder, transactions)

    def _start(self, transactions: int) -> None:
        # RocketMQ's clients refuse names with a dot.
        self.topic = topic_of(self.bridge, "real", PARTITIONS)
        self._ports, self._metrics = ([free_port() for _ in range(2)] for _ in range(2))
        self.doors = [self._door(number) for number in range(2)]
        share = transactions // _CLIENTS
        self.clients = []
        for number in range(_CLIENTS):
            client = self._stack.enter_context(self._client())
            sender = _Sender(self, f"client-{number}", client, range(number * share, (number + 1) * share))
            self.clients.append(sender)
        self.store = self
        for sender in self.clients:
            sender.start()

    def _door(self, number: int) -> Door:
        place, metrics = f"127.0.0.1:{self._ports[number]}", self._metrics[number]
        if self._grpc:
            made = Door(self.bridge, f"--grpc-listen={place}", metrics_port=metrics)
        else:
            addresses = ",".join(f"127.0.0.1:{port}" for port in self._ports)
            made = Door(self.bridge, f"--advertised={addresses}", listen=place, metrics_port=metrics)
        return self._stack.enter_context(made)

    def kill_door(self) -> None:
        """Kill the first door, and start it again at the address that clients know."""
        self.doors[0].kill()
        self.doors[0] = self._door(0)

    def _client(self) -> Client:
        if self._grpc:
            return GrpcClient("java", self.doors, [self.topic])
        return JavaClient("5.3.2", self.doors, _GROUP)

    def id_of(self, name: str) -> str:
        """The id of a transaction by the client's name for it."""
        return transaction_id(SECRET.encode(), self.topic if self._grpc else _GROUP, name)

    @property
    def count(self) -> int:
        return sum(one.done for one in self.clients)

    def decisions(self) -> dict[str, bool]:
        return {name: commits for one in self.clients for name, commits in one.decisions().items()}

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


def _door_killed(run: Run) -> None:
    assert isinstance(run, DoorRun)
    run.kill_door()
    # A client that does not come back would leave half of the work to the other door forever.
    stored = lambda: run.doors[0].metrics()["send_seconds_count"]  # noqa: E731
    eventually(lambda: stored() or not any(one.is_alive() for one in run.clients), 300)
    assert stored(), "the door that was started again got no message before the end of the traffic"


DOOR_CELLS = {
    "door kill -9": Cell(_door_killed, make=partial(DoorRun, grpc=False)),
    "door kill -9, gRPC": Cell(_door_killed, make=partial(DoorRun, grpc=True)),
}
