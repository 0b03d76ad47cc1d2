"""The chaos cells: faults of one process each in the middle of the traffic."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tests.chaos.checker import by_their_ids, refusals, unfinished, violations
from tests.chaos.client import FAULT_OVER
from tests.chaos.evidence import keep
from tests.chaos.reader import WatchingReader, sighting
from tests.chaos.store import DecisionStore, Plan
from tests.support.harness import Bridge, WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka

#: Longer than every session here, so that other workers take over and the stopped one comes back as a zombie.
STOPPED_S = 30.0
PARTITIONS = 4
_CLIENTS = 2
_SESSION_MS = 6_000
#: `commit_interval` of the workers, in turn: none, and the default.
_COMMIT_INTERVALS_S = (0, 0.02)
#: Every decided transaction has to be visible after this long without a fault.
_SETTLE_S = 180.0
#: Folder for the evidence of cells with violations.
EVIDENCE = Path("build/chaos/evidence")


class Decisions(Protocol):
    """The application's decisions, as the checker needs them."""

    @property
    def count(self) -> int: ...

    def decisions(self) -> dict[str, bool]: ...

    def plans(self) -> Mapping[str, Plan]: ...

    def close(self) -> None: ...


class ClientProcess:
    """A process of tests.chaos.client."""

    def __init__(self, run: Run, name: str, first: int, number: int) -> None:
        self.name, self.first, self.number = name, first, number
        bridge = run.bridge
        arguments = [bridge.bootstrap_servers, bridge.namespace, *run.topics, str(run.folder), name]
        arguments += map(str, (first, number, run.threads, *(f"{key}={value}" for key, value in run.settings.items())))
        with (run.folder / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.client", *arguments], stdout=log, stderr=log
            )


class Run:
    """Two workers, two clients, a Kafka and a reader, for one cell."""

    #: Threads of each client.
    threads = 16
    #: Settings of the clients, besides the servers.
    settings: Mapping[str, object] = MappingProxyType({})

    def __init__(self, kafka: EmbeddedKafka, bridge: Bridge, folder: Path, transactions: int) -> None:
        self.kafka, self.bridge, self.folder = kafka, bridge, folder
        # These timestamps show when a message was stored: none may be visible before its time.
        times = {"message_timestamp_type": "LogAppendTime"}
        self.topic, self.other = (bridge.create_topic(name, PARTITIONS, **times) for name in ("real", "other"))
        self._names = (f"client-{number}" for number in count(1))
        self.workers: list[WorkerProcess] = []
        for wait in (PARTITIONS, 1):
            self.add_worker(wait=wait)
        self._start(transactions)

    def _start(self, transactions: int) -> None:
        self.store: Decisions = DecisionStore(self.folder / "decisions.db")
        share = transactions // _CLIENTS
        self.clients = [ClientProcess(self, next(self._names), one * share, share) for one in range(_CLIENTS)]

    def add_worker(self, wait: int = 0) -> WorkerProcess:
        worker = self.bridge.worker(
            wait=wait,
            session_timeout=_SESSION_MS,
            commit_interval=_COMMIT_INTERVALS_S[len(self.workers) % 2],
            commit_timeout=5_000,
            transaction_timeout=3_000,
            transaction_check_interval=3_000,
            transaction_check_max=100,
        )
        self.workers.append(worker)
        return worker

    def replace_client(self, client: ClientProcess) -> None:
        """Replace a dead client: the new process goes on after its transactions.

        Checks settle the transactions in between.
        """
        done = len(list(_lines_of(self.folder / f"{client.name}.told")))
        rest = client.number - done
        self.clients.remove(client)
        self.clients.append(ClientProcess(self, next(self._names), client.first + done, rest))

    @property
    def topics(self) -> list[str]:
        """The real topics."""
        return [self.topic, self.other]

    @property
    def decided(self) -> int:
        return self.store.count

    def told(self) -> Iterator[tuple[str, str, bool]]:
        for file in self.folder.glob("*.told"):
            for name, decision, acknowledged in _lines_of(file):
                yield name, decision, acknowledged == "1"

    def close(self) -> None:
        for client in self.clients:
            client.process.send_signal(signal.SIGCONT)
            client.process.terminate()
        for client in self.clients:
            try:
                client.process.wait(120)
            except subprocess.TimeoutExpired:
                client.process.kill()
                client.process.wait()
        self.store.close()


def _client_dies(how: signal.Signals) -> Callable[[Run], None]:
    def fault(run: Run) -> None:
        victim = run.clients[0]
        victim.process.send_signal(how)
        victim.process.wait(60)
        run.replace_client(victim)

    return fault


def for_a_while(
    begin: Callable[[Run], object], end: Callable[[Run], object], seconds: float = STOPPED_S
) -> Callable[[Run], None]:
    """A fault that begins, lasts for some time, and ends."""

    def fault(run: Run) -> None:
        begin(run)
        time.sleep(seconds)
        end(run)

    return fault


def _rebalance_storm(run: Run) -> None:
    """Workers join and leave faster than the group can settle."""
    for number in range(8):
        extra = run.add_worker()
        time.sleep(1.5)
        extra.kill() if number % 2 else extra.stop()
        time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class Cell:
    """A fault, the Kafka that it needs, and the processes that have the traffic."""

    fault: Callable[[Run], None]
    kafka: Callable[[], AbstractContextManager[EmbeddedKafka]] = lambda: EmbeddedKafka(
        heap="1g", jvm_profile="throughput"
    )
    make: Callable[[EmbeddedKafka, Bridge, Path, int], Run] = Run


def _send(number: signal.Signals) -> Callable[[Run], None]:
    return lambda run: run.clients[0].process.send_signal(number)


#: Cells on one node of Kafka. Those on three brokers are in cluster_cells.py.
CELLS = {
    "client kill -9": Cell(_client_dies(signal.SIGKILL)),
    "client terminate": Cell(_client_dies(signal.SIGTERM)),
    "client stop 30 s": Cell(for_a_while(_send(signal.SIGSTOP), _send(signal.SIGCONT))),
    "worker kill -9": Cell(for_a_while(lambda run: run.workers[0].kill(), Run.add_worker, 0)),
    "worker terminate": Cell(for_a_while(lambda run: run.workers[0].stop(), Run.add_worker, 0)),
    "worker stop 30 s": Cell(for_a_while(lambda run: run.workers[0].pause(), lambda run: run.workers[0].resume())),
    "kafka kill -9": Cell(for_a_while(lambda run: run.kafka.kill(), lambda run: run.kafka.restart(), 0)),
    "kafka terminate": Cell(lambda run: run.kafka.restart()),
    "kafka stop 30 s": Cell(for_a_while(lambda run: run.kafka.pause(), lambda run: run.kafka.resume())),
    "rebalance storm": Cell(_rebalance_storm),
}


@dataclass(frozen=True, slots=True)
class CellReport:
    """Results of a cell. Times in seconds."""

    cell: str
    transactions: int
    committed: int
    rolled_back: int
    #: Numbers of committed transactions: with several messages, and with a time of delivery.
    several: int
    delayed: int
    acknowledged: int
    per_second: int
    #: Duration of the fault. With a stop, that is the time of the stop itself.
    fault_s: float
    #: The longest time after the fault's beginning in which a reader saw no new record of some half partition.
    longest_pause_s: float
    #: Time from the end of the fault until all decided transactions were visible.
    settled_s: float
    violations: list[str]


def run_cell(name: str, cell: Cell, transactions: int, say: Callable[[str], None] = print) -> CellReport:
    """Run a cell: traffic, a fault after a third of it, then quiet, then the verdict.

    Traffic goes on until the fault is over, even if that takes more transactions than requested.
    """
    with ExitStack() as stack:
        kafka = stack.enter_context(cell.kafka())
        bridge = stack.enter_context(Bridge(kafka.bootstrap_servers, f"chaos {name}", partitions=PARTITIONS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txbridge-chaos-")))
        run = stack.enter_context(closing(cell.make(kafka, bridge, folder, transactions)))
        with WatchingReader(bridge.bootstrap_servers, run.topics, PARTITIONS) as reader:
            since = time.monotonic()
            eventually(lambda: run.decided >= transactions // 3, 300, "the traffic did not come up")
            say(f"{name}: fault at {run.decided:,} transactions")
            fault = time.monotonic()
            cell.fault(run)
            fault_s = time.monotonic() - fault
            (folder / FAULT_OVER).touch()
            say(f"{name}: fault over after {fault_s:.0f} s")
            eventually(
                lambda: all((folder / f"{one.name}.done").exists() for one in run.clients),
                600,
                lambda: f"the clients did not finish: {run.decided:,} of {transactions:,} transactions",
            )
            traffic_s = time.monotonic() - since
            pause = reader.longest_pause(fault)
            left = _settle(run, reader)
            settled_s = time.monotonic() - fault - fault_s
            watched = list(reader.sightings)
        final = [sighting(message, 0.0) for topic in run.topics for message in bridge.read(topic)]
        decisions, plans = run.store.decisions(), run.store.plans()
        told = list(run.told())
        found = [*violations(decisions, told, watched, final, plans), *left]
        found += refusals(event for worker in run.workers for event in worker.events("end_refused"))
        if found:
            say(f"{name}: what it leaves behind is in {keep(name, bridge, EVIDENCE, folder)}")
        return CellReport(
            cell=name,
            transactions=len(decisions),
            committed=sum(decisions.values()),
            rolled_back=len(decisions) - sum(decisions.values()),
            several=sum(len(plan.topics) > 1 for plan in plans.values()),
            delayed=sum(plan.due is not None for plan in plans.values()),
            acknowledged=sum(acknowledged for _, _, acknowledged in told),
            per_second=round(len(decisions) / traffic_s),
            fault_s=round(fault_s, 1),
            longest_pause_s=round(pause, 1),
            settled_s=round(settled_s, 1),
            violations=found,
        )


def _lines_of(told: Path) -> Iterator[list[str]]:
    """The words of each whole line. The last line of a killed process may be torn."""
    for line in told.read_text().splitlines():
        if len(words := line.split()) == 3:
            yield words


def _settle(run: Run, reader: WatchingReader) -> list[str]:
    """Wait until every half message is finished, by a check if need be, and every committed one was seen.

    Returns the transactions that are not finished after _SETTLE_S. The store does not know a half message that was
    stored but not acknowledged. Its client rolls it back without the store.
    """
    halves = {
        (message.partition(), message.offset()): dict(message.headers() or ())["UNIQ_KEY"].decode()
        for message in run.bridge.read(run.bridge.names.half)
    }
    # Only a client's send leads to a commit, and all clients have finished sending.
    plans = run.store.plans()

    def is_seen() -> bool:
        seen = Counter(one.transaction_id for one in by_their_ids(list(reader.sightings), plans))
        committed = {name for name, commits in run.store.decisions().items() if commits}
        return all(seen[name] >= (len(plans[name].topics) if name in plans else 1) for name in committed)

    deadline = time.monotonic() + _SETTLE_S
    while not is_seen() and time.monotonic() < deadline:
        time.sleep(0.5)
    while (left := unfinished(halves, run.bridge.outcomes())) and time.monotonic() < deadline:
        time.sleep(0.5)
    # A wrong delivery may come late.
    time.sleep(2)
    return left
