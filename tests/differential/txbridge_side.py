"""Scenarios on txbridge: the real client, a real worker process, a real Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.differential.scenario import Answer, Fate, Stage
from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, Prepared, WorkerProcess
from txbridge import LocalTransactionState, Message, MessageExt, TransactionListener, TransactionProducer
from txbridge.embedded import EmbeddedKafka

_STATES = {
    Answer.COMMIT: LocalTransactionState.COMMIT_MESSAGE,
    Answer.ROLLBACK: LocalTransactionState.ROLLBACK_MESSAGE,
    Answer.UNKNOWN: LocalTransactionState.UNKNOWN,
}
_DECISIONS = {Answer.COMMIT: COMMIT, Answer.ROLLBACK: ROLLBACK}
# The END goes to a broker on this machine. With librdkafka's 5 minutes a dead broker would be noticed too late.
_END_TIMEOUT_S = 30.0

#: Folder of the workers' logs. They are kept, to explain a difference.
LOGS = Path("build/differential")


@contextlib.contextmanager
def txbridge(kafka: EmbeddedKafka) -> Iterator[Callable[[str], Stage]]:
    """Start a txbridge; yield a function that makes the stage for a scenario of this name."""
    with running(kafka, "differential") as (bridge, worker):
        topic = bridge.create_topic("real")
        yield lambda scenario: TxBridgeStage(bridge, worker, topic, scenario)


@contextlib.contextmanager
def running(kafka: EmbeddedKafka, namespace: str) -> Iterator[tuple[Bridge, WorkerProcess]]:
    """A namespace with a running worker."""
    with Bridge(kafka.bootstrap_servers, namespace) as bridge:
        # The default times are those of `harness.FAST`, which RocketMQ has here, too.
        worker = bridge.worker()
        try:
            yield bridge, worker
        finally:
            (LOGS / f"worker-{namespace}.log").write_text(worker.log)
    # The clients end here. A stage may still refer to them, and they would log errors once Kafka is gone.
    del bridge.admin, bridge._producer


def refusals(worker: WorkerProcess) -> Counter[object]:
    """Count the decisions that the worker has refused, by partition and offset of the half message."""
    refused: Counter[object] = Counter()
    for event in worker.events("end_refused"):
        refused[event["partition"], event["half_offset"]] += int(str(event["count"]))
    return refused


def fates_in_kafka(bridge: Bridge, worker: WorkerProcess, topic: str) -> Callable[..., Fate]:
    """A function that tells the fate of a message: by its body, its checks, its place, and what else was refused."""
    copies, set_aside = bridge.visible(topic), Counter(record["value"] for record in bridge.discarded())
    refused = refusals(worker)

    def fate(body: str, checks: int, prepared: Prepared, more: int = 0) -> Fate:
        value, where = body.encode(), (prepared.partition, prepared.offset)
        return Fate(copies[value], checks, set_aside[value], more + refused[where])

    return fate


@dataclass
class _Transaction:
    """State of one transaction in the application."""

    answer: Answer
    checks: Sequence[Answer]
    checked: int = 0
    prepared: Prepared | None = None


class _Listener(TransactionListener):
    """Gives the answers of the script. A transaction is found by the value of its message."""

    def __init__(self) -> None:
        self.transactions: dict[str, _Transaction] = {}
        self._lock = threading.Lock()

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        return _state(self._of(message).answer)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        transaction = self._of(message)
        with self._lock:
            transaction.checked += 1
            number = min(transaction.checked, len(transaction.checks))
        return _state(transaction.checks[number - 1])

    def _of(self, message: MessageExt) -> _Transaction:
        assert message.value is not None
        return self.transactions[message.value.decode().rpartition("/")[2]]


def _state(answer: Answer) -> LocalTransactionState:
    if answer is Answer.EXCEPTION:
        raise RuntimeError("the application fails, as the scenario wants it")
    return _STATES[answer]


class TxBridgeStage(Stage):
    def __init__(self, bridge: Bridge, worker: WorkerProcess, topic: str, scenario: str) -> None:
        self._bridge, self._worker, self._topic = bridge, worker, topic
        self._group = scenario
        self._listener = _Listener()
        self._producer: TransactionProducer | None = None
        self.come_back()

    def _body(self, name: str) -> str:
        return f"{self._group}/{name}"

    def _prepared(self, name: str) -> Prepared:
        prepared = self._listener.transactions[name].prepared
        assert prepared is not None
        return prepared

    def _send(self, name: str, answer: Answer, checks: list[Answer], immunity: int | None, *, lost: bool) -> None:
        assert not lost, "there is no such step here"
        transaction = self._listener.transactions[name] = _Transaction(answer, checks)
        assert self._producer is not None
        result = self._producer.send_message_in_transaction(
            Message(self._topic, self._body(name), check_immunity_time=immunity)
        )
        transaction.prepared = Prepared(result.half_partition, result.half_offset, result.transaction_id)
        # Wait, so that a decision by hand comes after the producer's in END.
        result.wait(_END_TIMEOUT_S)

    def decide(self, name: str, decision: Answer, *, stranger: bool = False) -> None:
        group = "stranger" if stranger else self._group
        self._bridge.decide(self._prepared(name), _DECISIONS[decision], group=group)

    def answer_again(self, name: str, decision: Answer) -> None:
        prepared = self._prepared(name)
        entry = prepared.entry(_DECISIONS[decision], self._listener.transactions[name].checked)
        self._bridge.end([entry], prepared.partition, group=self._group, source="check")

    def resume(self, name: str) -> None:
        prepared = self._prepared(name)
        self._bridge.end([prepared.entry(UNKNOWN)], prepared.partition, group=self._group, source="resume")

    def leave(self) -> None:
        assert self._producer is not None
        self._producer.close()
        self._producer = None

    def come_back(self) -> None:
        self._producer = TransactionProducer(
            self._group,
            self._listener,
            {"bootstrap.servers": self._bridge.bootstrap_servers},
            namespace=self._bridge.namespace,
        ).start()

    def checks(self, name: str) -> int:
        return self._listener.transactions[name].checked

    def fates(self) -> Mapping[str, Fate]:
        fate = fates_in_kafka(self._bridge, self._worker, self._topic)
        return {
            name: fate(self._body(name), transaction.checked, self._prepared(name))
            for name, transaction in self._listener.transactions.items()
        }

    def close(self) -> None:
        if self._producer is not None:
            self.leave()
