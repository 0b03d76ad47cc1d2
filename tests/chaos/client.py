"""An application process under chaos: transactions at full speed, and a log of the results that it got.

    python -m tests.chaos.client SERVERS NAMESPACE TOPIC OTHER_TOPIC FOLDER NAME FIRST COUNT THREADS [SETTING=VALUE ...]

Of eleven transactions one has several messages for both topics, one names a time some seconds ahead, and one does both.
Each line of FOLDER/NAME.told is `id decision acknowledged`: the decision (C, R, or U for unknown) and whether Kafka has
acknowledged it. It sends COUNT transactions, and more until the fault is over (FOLDER/fault.over). Then it makes
FOLDER/NAME.done, and answers checks until it gets SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

from tests.chaos.store import DecisionStore, Plan
from txbridge import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)
from txbridge.errors import TxBridgeError

_COMMIT, _ROLLBACK, _UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOWN,
)
#: Half messages fail while Kafka is away. An immediate retry would only waste processor time.
_RETRY_S = 0.5
#: Name of the file that marks the end of the fault.
FAULT_OVER = "fault.over"


def intended(number: int) -> tuple[LocalTransactionState, bool]:
    """First answer of transaction `number`, and whether it commits. Of 100, 90 commit, 5 roll back, 5 are checked."""
    place = number % 100
    if place < 90:
        return _COMMIT, True
    if place < 95:
        return _ROLLBACK, False
    return _UNKNOWN, place < 98


def plan_of(number: int, topic: str, other: str, now: int) -> Plan:
    """Messages of transaction `number`, at this time (ms)."""
    # 11 and the 100 of `intended` have no common divisor: every kind of message meets every kind of answer.
    kind = number % 11
    topics = (topic, other, topic, other) if kind in {1, 3} else (topic,)
    return Plan(topics, now + (1 + number % 5) * 1_000 if kind in {2, 3} else None)


class _Listener(TransactionListener):
    def __init__(self, store: DecisionStore) -> None:
        self._store = store

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        number, plan = arg
        answer, commits = intended(number)
        committed = self._store.decide(message.transaction_id, commits=commits, plan=plan)
        if answer is _UNKNOWN:
            return _UNKNOWN
        return _COMMIT if committed else _ROLLBACK

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        # The decision is missing: its process died or was stopped before. It is rolled back from now on.
        return _COMMIT if self._store.decide(message.transaction_id, commits=False) else _ROLLBACK


def _send(producer: TransactionProducer, number: int, plan: Plan) -> TransactionSendResult:
    # All messages of a transaction have one key, so those for one topic are in one partition.
    messages = [
        Message(topic, str(number), key=str(number % 97), deliver_at=plan.due if topic == plan.topics[0] else None)
        for topic in plan.topics
    ]
    if len(messages) == 1:
        return producer.send_message_in_transaction(messages[0], (number, plan))
    return producer.send_message_in_transaction(messages, (number, plan))


def main() -> None:
    servers, namespace, topic, other, folder, name, first, number, threads, *settings = sys.argv[1:]
    kafka = {"bootstrap.servers": servers, "session.timeout.ms": "6000"}
    kafka.update(setting.split("=", 1) for setting in settings)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    store = DecisionStore(Path(folder) / "decisions.db")
    numbers, lock = count(int(first)), threading.Lock()
    last = int(first) + int(number)
    over = Path(folder) / FAULT_OVER
    with (
        (Path(folder) / f"{name}.told").open("a", buffering=1) as told,
        TransactionProducer("chaos", _Listener(store), kafka, namespace=namespace) as producer,
    ):

        def run() -> None:
            while not ended.is_set():
                with lock:
                    mine = next(numbers)
                if mine >= last and over.exists():
                    return
                while not ended.is_set():
                    try:
                        now = time.time_ns() // 1_000_000
                        result = _send(producer, mine, plan_of(mine, topic, other, now))
                    except TxBridgeError:
                        time.sleep(_RETRY_S)
                        continue
                    state = result.local_transaction_state
                    letter = {_COMMIT: "C", _ROLLBACK: "R", _UNKNOWN: "U"}[state]
                    result.end.add_done_callback(
                        lambda end, line=f"{result.transaction_id} {letter}": told.write(
                            f"{line} {int(end.exception() is None)}\n"
                        )
                    )
                    break

        workers = [threading.Thread(target=run, daemon=True) for _ in range(int(threads))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        producer.flush(60)
        (Path(folder) / f"{name}.done").touch()
        ended.wait()
        for worker in workers:
            worker.join()
    store.close()


if __name__ == "__main__":
    main()
