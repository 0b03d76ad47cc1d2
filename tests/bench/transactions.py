"""The whole path, measured: a client in this process, a worker in another, a read_committed reader in a third."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from tests.bench.feed import PATIENCE_S
from tests.harness import Bridge
from txbridge import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)
from txbridge.core.names import Names

#: Sends in flight of the asyncio face.
_TASKS = 1_000
_GROUP = "bench"
#: Nothing shall fall due but what answers unknown, which is checked this soon (ms).
_CHECK_AFTER = 3_000


class Mix:
    """What the local transactions answer: of 100, so many roll back, and so many do not know until they are checked."""

    def __init__(self, rollback: int = 0, unknown: int = 0) -> None:
        commit = 100 - rollback - unknown
        self._states = (
            [LocalTransactionState.ROLLBACK_MESSAGE] * rollback
            + [LocalTransactionState.UNKNOW] * unknown
            + [LocalTransactionState.COMMIT_MESSAGE] * commit
        )

    def state(self, number: int) -> LocalTransactionState:
        return self._states[number % 100]

    def committed(self, count: int) -> int:
        return sum(self.state(number) is not LocalTransactionState.ROLLBACK_MESSAGE for number in range(count))


class _Listener(TransactionListener):
    def __init__(self, mix: Mix) -> None:
        self._mix = mix

    def execute_local_transaction(self, message, arg):
        return self._mix.state(arg)

    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT_MESSAGE


class _AsyncListener(AsyncTransactionListener):
    def __init__(self, mix: Mix) -> None:
        self._mix = mix

    async def execute_local_transaction(self, message, arg):
        return self._mix.state(arg)

    async def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT_MESSAGE


class ReaderProcess:
    """Counts what becomes visible in topics; a process of its own, as it would otherwise share the client's GIL."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.reader", bootstrap_servers, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def expect(self, count: int) -> None:
        """From now on count, up to this many."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        assert self._answer() == "counting"

    def last_seen(self) -> float:
        """When the last of them was seen, on the monotonic clock that all processes share (s)."""
        return float(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0


class Stand:
    """A namespace with a worker and a reader, for one measurement after the other."""

    def __init__(self, bootstrap_servers: str, partitions: int = 1, workers: int = 1) -> None:
        self._bridge = Bridge(bootstrap_servers, "bench", partitions=partitions)
        self._partitions, self._workers = partitions, workers
        self._settings = {"bootstrap.servers": bootstrap_servers}

    def __enter__(self) -> Self:
        self._bridge.__enter__()
        self._real = self._bridge.create_topic("real", partitions=self._partitions)
        for _ in range(self._workers):
            self._bridge.worker(
                transaction_timeout=_CHECK_AFTER,
                transaction_check_interval=_CHECK_AFTER,
                transaction_check_rate=10_000,
                wait=0,
            )
        owned: set[int] = set()
        deadline = time.monotonic() + 60
        while len(owned) < self._partitions:
            assert time.monotonic() < deadline, "the workers did not take over all partitions"
            time.sleep(0.1)
            owned = {
                int(str(event["partition"]))
                for worker in self._bridge.workers
                for event in worker.events("partition_taken_over")
            }
        self._reader = ReaderProcess(self._bridge.bootstrap_servers, self._real)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        self._bridge.__exit__(kind, error, trace)

    def per_second(self, send: Callable[[int, Mix, bytes], None], count: int, size: int, mix: Mix) -> float:
        """Transactions a second, from the first prepare until the last committed record is seen."""
        self._reader.expect(mix.committed(count))
        since = time.monotonic()
        send(count, mix, b"v" * size)
        return count / (self._reader.last_seen() - since)

    def pipelined(self, count: int, mix: Mix, value: bytes) -> None:
        failed: list[BaseException] = []

        def note(future) -> None:
            if (error := future.exception()) is not None:
                failed.append(error)

        with self._producer(mix) as producer:
            for number in range(count):
                producer.submit_message_in_transaction(self._message(number, value), number).add_done_callback(note)
            assert producer.flush() == 0
        assert not failed, failed[0]

    def asyncio(self, count: int, mix: Mix, value: bytes) -> None:
        asyncio.run(self._send_on_a_loop(count, mix, value))

    async def _send_on_a_loop(self, count: int, mix: Mix, value: bytes) -> None:
        numbers = itertools.count()

        async def work() -> None:
            while (number := next(numbers)) < count:
                await producer.send_message_in_transaction(self._message(number, value), number)

        producer = AsyncTransactionProducer(_GROUP, _AsyncListener(mix), self._settings, namespace=self._namespace)
        async with producer, asyncio.TaskGroup() as group:
            for _ in range(_TASKS):
                group.create_task(work())

    def blocking(self, threads: int) -> Callable[[int, Mix, bytes], None]:
        """By so many threads."""

        def send(count: int, mix: Mix, value: bytes) -> None:
            with self._producer(mix) as producer:
                in_threads(
                    threads,
                    count,
                    lambda number: producer.send_message_in_transaction(self._message(number, value), number),
                )

        return send

    def bare(self, threads: int, count: int, size: int) -> float:
        """Records a second that so many threads produce, each waiting for its acknowledgement before the next."""
        topic = self._bridge.create_topic(f"bare-{time.monotonic_ns()}", partitions=self._partitions)
        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 0})
        value, stopped = b"v" * size, threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                producer.poll(0.1)

        def send(number: int) -> None:
            stored = threading.Event()
            producer.produce(topic, value, b"%d" % number, on_delivery=lambda *_: stored.set())
            assert stored.wait(PATIENCE_S)

        server = threading.Thread(target=serve)
        server.start()
        since = time.monotonic()
        in_threads(threads, count, send)
        seconds = time.monotonic() - since
        stopped.set()
        server.join()
        producer.close()
        return count / seconds

    @property
    def names(self) -> Names:
        return self._bridge.names

    @property
    def real_topic(self) -> str:
        return self._real

    @property
    def _namespace(self) -> str:
        return self._bridge.namespace

    def _producer(self, mix: Mix) -> TransactionProducer:
        return TransactionProducer(_GROUP, _Listener(mix), self._settings, namespace=self._namespace)

    def _message(self, number: int, value: bytes) -> Message:
        return Message(self._real, value, b"%d" % number)


def in_threads(threads: int, count: int, send: Callable[[int], object]) -> None:
    """Call it for all numbers below `count`, one after the other in each thread; what it raises is raised."""
    numbers, failed = itertools.count(), []

    def work() -> None:
        try:
            while not failed and (number := next(numbers)) < count:
                send(number)
        except Exception as error:
            failed.append(error)

    started = [threading.Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failed:
        raise failed[0]
