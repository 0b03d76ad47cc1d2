"""The whole path, measured: a client in this process, workers in others, and a read_committed reader in another one."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.load import Clients, Load, Mix
from tests.bench.measure import PER_SECOND, Found
from tests.bench.reader_process import ReaderProcess
from tests.bench.report import CPU
from tests.support import http
from tests.support.harness import Bridge, cpu_seconds, eventually
from txbridge.core.names import Names
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

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

    def __init__(
        self,
        kafka: EmbeddedKafka,
        partitions: int = 1,
        workers: int = 1,
        check_after: int = _CHECK_AFTER,
        check_again_after: int = _CHECK_AGAIN_AFTER,
        make_topic: Callable[[Bridge, str, int], str] = Bridge.create_topic,
        *,
        has_metrics: bool = False,
    ) -> None:
        self.bridge = Bridge(kafka.bootstrap_servers, "bench", partitions=partitions)
        self._kafka = kafka
        self._partitions, self._workers = partitions, workers
        self._check_after, self._check_again_after = check_after, check_again_after
        self._make_topic = make_topic
        self._metrics_ports = [free_port() if has_metrics else 0 for _ in range(workers)]
        self.clients = Clients(kafka.bootstrap_servers, self.bridge.namespace)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.bridge)
            self.real_topic = self._make_topic(self.bridge, "real", self._partitions)
            for port in self._metrics_ports:
                self.bridge.worker(
                    metrics_port=port,
                    transaction_timeout=self._check_after,
                    transaction_check_interval=self._check_again_after,
                    transaction_check_max=15,
                    transaction_check_rate=10_000,
                    session_timeout=_SESSION,
                    wait=0,
                )
            eventually(self._all_is_owned, _START_S, "the workers did not take over all partitions")
            self.reader = stack.enter_context(ReaderProcess(self.bridge.bootstrap_servers, self.real_topic))
            self._close = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close.__exit__(kind, error, trace)

    @property
    def names(self) -> Names:
        return self.bridge.names

    def measure(self, send: Callable[[Load], float], count: int, size: int, mix: Mix) -> Found:
        """Measure from the first prepare until the last committed record is seen, with each process's processor time.

        The client's time includes its start and its end.
        """
        load = Load(self.real_topic, count, size, mix)
        self.reader.expect(load.committed)
        before = self.cpu_seconds()
        since = send(load)
        seconds = self.reader.last_seen() - since
        found = {PER_SECOND: count / seconds, **cpu_us_each(before, self.cpu_seconds(), count)}
        self.clients.answer_the_rest(load)
        return found

    def scraped(self) -> dict[str, float]:
        """Metrics without labels, summed over all workers. They must have some."""
        found: Counter[str] = Counter()
        for port in self._metrics_ports:
            for family in text_string_to_metric_families(http.ask(f"http://127.0.0.1:{port}/metrics").text):
                found.update({sample.name: sample.value for sample in family.samples if not sample.labels})
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far, by process group. The client is this process."""
        return {
            "client": cpu_seconds(os.getpid()),
            "workers": sum(cpu_seconds(worker.pid) for worker in self.bridge.workers),
            "Kafka": cpu_seconds(self._kafka.pid),
            "reader": cpu_seconds(self.reader.pid),
        }

    def _all_is_owned(self) -> bool:
        """Whether the workers share all partitions, and each is taken over by its owner."""
        shares = [
            worker.owned() & {int(event["partition"]) for event in worker.events("partition_taken_over")}
            for worker in self.bridge.workers
        ]
        # The first worker has all of them until the second one has joined.
        busy = sum(map(bool, shares))
        return sum(map(len, shares)) == self._partitions and busy == min(self._workers, self._partitions)


def cpu_us_each(before: Mapping[str, float], after: Mapping[str, float], count: int) -> Found:
    """Processor time for each transaction, by process group."""
    return {f"{CPU}{group}": (after[group] - before[group]) / count * 1e6 for group in before}
