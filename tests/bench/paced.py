"""One client for several measurements at a fixed pace, with the times at which each message was decided and seen."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import NamedTuple, Self

from tests.bench.load import paced
from tests.bench.reader_process import Seen
from tests.bench.stand import Stand
from tests.bench.values import Values
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer, TransactionSendResult


class _Notes(TransactionListener):
    """A listener that answers the same for all messages, commits the checked ones, and notes when it was called."""

    def __init__(self, answer: LocalTransactionState) -> None:
        self._answer = answer
        self.called: dict[int, float] = {}
        self.checks = 0

    def execute_local_transaction(self, message, arg):
        self.called[arg] = time.monotonic()
        return self._answer

    def check_local_transaction(self, message):
        self.checks += 1
        return LocalTransactionState.COMMIT_MESSAGE


class Sent(NamedTuple):
    """The messages of one measurement, in the order in which they were sent."""

    results: list[Future[TransactionSendResult]]
    #: Times when their local transactions were called (monotonic, s).
    called: list[float]
    seen: Seen


class PacedClient:
    """A pipelined producer, which one thread can feed at any pace. Its local transactions all give the same answer.

    One client serves all rounds, as in RocketMQ: its start and its joining of the group are not measured.
    """

    def __init__(self, stand: Stand, answer: LocalTransactionState, commit_interval: float = 0.02) -> None:
        self._stand = stand
        self._notes = _Notes(answer)
        self._producer = TransactionProducer(
            "bench",
            self._notes,
            {"bootstrap.servers": stand.bridge.bootstrap_servers},
            namespace=stand.bridge.namespace,
            commit_interval=commit_interval,
        )
        self._next = 0

    def __enter__(self) -> Self:
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    @property
    def checks(self) -> int:
        """Number of checks answered so far."""
        return self._notes.checks

    def send(self, count: int, rate: float, size: int, settle: float = 0.0) -> Sent:
        """Send `count` messages, `rate` a second. Returns `settle` seconds after the last of them was seen."""
        first, self._next = self._next, self._next + count
        values, topic, reader = Values(size), self._stand.real_topic, self._stand.reader
        reader.expect_numbers(first, count, settle)
        results = [
            self._producer.submit_message_in_transaction(Message(topic, values[number], b"%d" % number), number)
            for number in (first + place for place in paced(count, rate))
        ]
        seen = reader.seen()
        return Sent(results, [self._notes.called[first + place] for place in range(count)], seen)
