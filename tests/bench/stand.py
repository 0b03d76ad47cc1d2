"""The whole path, measured: a client in this process, workers in others, and a read_committed reader in another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.bench.load import ALL_COMMIT, Clients, Load, Mix, Span
from tests.bench.measure import PER_SECOND, Found
from tests.bench.reader_process import ReaderProcess
from tests.bench.report import CPU
from tests.support.harness import Bridge, cpu_seconds, eventually
from txbridge.embedded import EmbeddedKafka

#: Only transactions that answered unknown fall due. They are checked after this time (ms).
_CHECK_AFTER = 1_000
#: Short enough that no measurement waits long, and far longer than an answer needs (ms).
_CHECK_AGAIN_AFTER = 5_000
#: No worker dies here, and a slow worker of a loaded machine must not count as dead (ms).
_SESSION = 10_000
#: A worker starts in 3 s. Four of them on two busy cores take several times that.
_START_S = 120.0


class Stand:
    """A namespace with workers and a reader for several measurements."""

    def __init__(self, kafka: EmbeddedKafka, bridge: Bridge, real_topic: str, reader: ReaderProcess) -> None:
        self._kafka, self.bridge, self.real_topic, self.reader = kafka, bridge, real_topic, reader
        self.clients = Clients(kafka.bootstrap_servers, bridge.namespace)

    @property
    def topics(self) -> dict[str, str]:
        """The topics to which a transaction writes, by their short names."""
        names = self.bridge.names
        internal = {"half": names.half, "end": names.end, "op": names.op, "offset": names.offset}
        return internal | {"real topic": self.real_topic}

    def measure(self, send: Callable[[Load], Span], count: int, size: int, mix: Mix = ALL_COMMIT) -> Found:
        """Measure from the first prepare until the last committed record is seen, with each process's processor time.

        The client's time includes its start and its end.
        """
        load = Load(self.real_topic, count, size, mix)
        self.reader.expect(load.committed)
        before = self.cpu_seconds()
        since = send(load).since
        seconds = self.reader.last_seen() - since
        found = {PER_SECOND: count / seconds, **cpu_us_each(before, self.cpu_seconds(), count)}
        self.clients.answer_the_rest(load)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far, by process group. The client is this process."""
        return {
            "client": cpu_seconds(os.getpid()),
            "workers": sum(cpu_seconds(worker.pid) for worker in self.bridge.workers),
            "Kafka": cpu_seconds(self._kafka.pid),
            "reader": cpu_seconds(self.reader.pid),
        }


@contextmanager
def standing(
    kafka: EmbeddedKafka,
    partitions: int = 1,
    workers: int = 1,
    check_after: int = _CHECK_AFTER,
    check_again_after: int = _CHECK_AGAIN_AFTER,
    make_topic: Callable[[Bridge, str, int], str] = Bridge.create_topic,
    commit_interval: float = 0.02,
) -> Iterator[Stand]:
    """Start workers, which share all partitions, and a reader."""
    with Bridge(kafka.bootstrap_servers, "bench", partitions=partitions) as bridge:
        real_topic = make_topic(bridge, "real", partitions)
        for _ in range(workers):
            bridge.worker(
                commit_interval=commit_interval,
                transaction_timeout=check_after,
                transaction_check_interval=check_again_after,
                transaction_check_max=15,
                transaction_check_rate=10_000,
                session_timeout=_SESSION,
                wait=0,
            )

        def all_is_owned() -> bool:
            shares = [
                worker.owned() & {int(event["partition"]) for event in worker.events("partition_taken_over")}
                for worker in bridge.workers
            ]
            # The first worker has all of them until the second one has joined.
            return sum(map(len, shares)) == partitions and sum(map(bool, shares)) == min(workers, partitions)

        eventually(all_is_owned, _START_S, "the workers did not take over all partitions")
        with ReaderProcess(kafka.bootstrap_servers, real_topic) as reader:
            yield Stand(kafka, bridge, real_topic, reader)


def cpu_us_each(before: Mapping[str, float], after: Mapping[str, float], count: int) -> Found:
    """Processor time for each transaction, by process group."""
    return {f"{CPU}{group}": (after[group] - before[group]) / count * 1e6 for group in before}
