"""RocketMQ's own scenario TransactionalMsgIT with our client, our worker and a real Kafka, and an audit at the end."""

from __future__ import annotations

import threading
from collections import Counter

from tests.support.harness import Bridge, eventually
from txbridge import LocalTransactionState, Message, MessageExt, TransactionListener, TransactionProducer

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOWN,
)


class ByNumber(TransactionListener):
    """Decides message i by i % 5."""

    def __init__(self) -> None:
        self.checks: Counter[int] = Counter()
        self.check_times: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    def execute_local_transaction(self, message: MessageExt, arg: object) -> LocalTransactionState:
        return {0: COMMIT, 1: ROLLBACK, 2: UNKNOWN, 3: UNKNOWN, 4: UNKNOWN}[int(message.value) % 5]

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        number = int(message.value)
        with self._lock:
            self.checks[number] += 1
            self.check_times.setdefault(number, []).append(message.check_times)
        return {0: COMMIT, 1: ROLLBACK, 2: COMMIT, 3: ROLLBACK, 4: UNKNOWN}[number % 5]


def test_transactional_msg_it(bridge: Bridge) -> None:
    """P1, P2, P3, P4, P6, P7: 120 messages; commit, rollback, commit by check, rollback by check, unknown forever."""
    topic = bridge.create_topic("orders")
    bridge.worker(transaction_check_max=3)
    listener = ByNumber()
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with TransactionProducer("orders-service", listener, settings, namespace=bridge.namespace) as producer:
        for number in range(120):
            producer.send_message_in_transaction(Message(topic, b"%d" % number, key=b"key-%d" % (number % 7)))
        producer.flush()
        eventually(lambda: len(bridge.discarded()) == 24, 60, "24 messages should be discarded")
        committed = [number for number in range(120) if number % 5 in {0, 2}]
        bridge.wait_visible(topic, [b"%d" % number for number in committed])
        eventually(lambda: len(bridge.outcomes()) == 120, 30, "every message should have an outcome")

    assert bridge.visible(topic) == Counter({b"%d" % number: 1 for number in committed})
    # Only messages with an unknown state were checked; the undecidable ones three times, with the numbers 1 to 3.
    assert set(listener.checks) == {number for number in range(120) if number % 5 in {2, 3, 4}}
    assert all(listener.checks[number] == 1 for number in listener.checks if number % 5 != 4)
    assert all(listener.check_times[number] == [1, 2, 3] for number in range(4, 120, 5))
    discarded = bridge.discarded()
    assert Counter(record["value"] for record in discarded) == Counter({b"%d" % i: 1 for i in range(4, 120, 5)})
    assert {record["TXB_REASON"] for record in discarded} == {b"MAX_CHECKS"}
    assert {record["TRANSACTION_CHECK_TIMES"] for record in discarded} == {b"3"}
    outcomes = Counter(outcome for named in bridge.outcomes().values() for outcome in named)
    assert outcomes == {"commit": 48, "rollback": 48, "discard": 24}
