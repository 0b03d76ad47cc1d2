"""Transactions by each API of the client: the messages of a measurement, and the answers of local transactions."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from tests.bench.values import Values
from tests.support.harness import eventually
from txbridge import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)

#: Number of sends in flight of the asyncio API.
_TASKS = 1_000
_GROUP = "bench"
#: Answers to checks come within two check intervals. This is for a loaded machine.
_ANSWERS_S = 60.0


@dataclass(frozen=True)
class Mix:
    """Answers of local transactions. Of 100, some roll back, and some answer unknown and roll back when checked."""

    rollback: int = 0
    unknown: int = 0

    def state(self, number: int) -> LocalTransactionState:
        place = number % 100
        if place < self.rollback:
            return LocalTransactionState.ROLLBACK_MESSAGE
        return (
            LocalTransactionState.UNKNOWN
            if place < self.rollback + self.unknown
            else LocalTransactionState.COMMIT_MESSAGE
        )

    def count(self, state: LocalTransactionState, count: int) -> int:
        """Number of `count` transactions whose first answer is this one."""
        return sum(self.state(number) is state for number in range(count))


ALL_COMMIT = Mix()


@dataclass
class Load:
    """The transactions of one measurement: keys are numbers from 0."""

    topic: str
    count: int
    size: int
    mix: Mix = ALL_COMMIT
    #: Number of equal messages of each transaction. Only the pipelined API sends more than one.
    together: int = 1
    #: Numbers of the transactions whose check was answered.
    answered: set[int] = field(default_factory=set)

    @property
    def committed(self) -> int:
        return self.mix.count(LocalTransactionState.COMMIT_MESSAGE, self.count)

    @property
    def unknown(self) -> int:
        return self.mix.count(LocalTransactionState.UNKNOWN, self.count)

    def messages(self) -> Iterator[tuple[int, Message]]:
        values = Values(self.size)
        return ((number, Message(self.topic, values[number], b"%d" % number)) for number in range(self.count))

    def answer_check(self, key: bytes | None) -> LocalTransactionState:
        self.answered.add(int(key or b""))
        return LocalTransactionState.ROLLBACK_MESSAGE


class _Listener(TransactionListener):
    def __init__(self, load: Load) -> None:
        self._load = load

    def execute_local_transaction(self, message, arg):
        return self._load.mix.state(arg)

    def check_local_transaction(self, message):
        return self._load.answer_check(message.key)


class _AsyncListener(AsyncTransactionListener):
    def __init__(self, load: Load) -> None:
        self._load = load

    async def execute_local_transaction(self, message, arg):
        return self._load.mix.state(arg)

    async def check_local_transaction(self, message):
        return self._load.answer_check(message.key)


class Span(NamedTuple):
    """When the first message was handed over, and when all decisions were acknowledged (monotonic, s)."""

    since: float
    until: float


class Clients:
    """Sends a load by an API. A new client is started before each load."""

    def __init__(
        self, bootstrap_servers: str, namespace: str, settings: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """Keep librdkafka's `settings`, besides the servers."""
        self._settings = {"bootstrap.servers": bootstrap_servers, **settings}
        self._namespace = namespace

    def pipelined(self, load: Load) -> Span:
        failed: list[BaseException] = []

        def note(future) -> None:
            if (error := future.exception()) is not None:
                failed.append(error)

        with self._producer(load) as producer:
            since = time.monotonic()
            for number, message in load.messages():
                if load.together == 1:
                    future = producer.submit_message_in_transaction(message, number)
                else:
                    future = producer.submit_message_in_transaction([message] * load.together, number)
                future.add_done_callback(note)
            assert producer.flush() == 0
            until = time.monotonic()
        assert not failed, failed[0]
        return Span(since, until)

    def asyncio(self, load: Load) -> Span:
        return asyncio.run(self._send_on_a_loop(load))

    async def _send_on_a_loop(self, load: Load) -> Span:
        messages = load.messages()

        async def work() -> None:
            for number, message in messages:
                await producer.send_message_in_transaction(message, number)

        producer = AsyncTransactionProducer(_GROUP, _AsyncListener(load), self._settings, namespace=self._namespace)
        async with producer:
            since = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(_TASKS):
                    group.create_task(work())
            assert await producer.flush() == 0
            return Span(since, time.monotonic())

    def blocking(self, threads: int) -> Callable[[Load], Span]:
        """Send from so many threads with the blocking API."""

        def send(load: Load) -> Span:
            messages = dict(load.messages())
            with self._producer(load) as producer:
                since = time.monotonic()
                in_threads(
                    threads, load.count, lambda number: producer.send_message_in_transaction(messages[number], number)
                )
                assert producer.flush() == 0
                return Span(since, time.monotonic())

        return send

    def answer_the_rest(self, load: Load) -> None:
        """Answer the remaining checks, so that they do not add to the next measurement."""
        if load.unknown:
            with self._producer(load):
                eventually(lambda: len(load.answered) == load.unknown, _ANSWERS_S, "not all checks came")

    def _producer(self, load: Load) -> TransactionProducer:
        return TransactionProducer(_GROUP, _Listener(load), self._settings, namespace=self._namespace)


def in_threads(threads: int, count: int, send: Callable[[int], object]) -> None:
    """Call it for all numbers below `count`, one after the other in each thread. Raises the first exception."""
    numbers = itertools.count()

    def work() -> None:
        while (number := next(numbers)) < count:
            send(number)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


def paced(count: int, rate: float) -> Iterator[int]:
    """Numbers, each at its time: `rate` a second. Late ones come at once."""
    since = time.monotonic()
    for number in range(count):
        left = since + number / rate - time.monotonic()
        if left > 0:
            time.sleep(left)
        yield number
