"""The chaos cells: faults of one process each in the middle of the traffic."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tests.chaos.checker import refusals, unfinished, violations
from tests.chaos.client import FAULT_OVER
from tests.chaos.evidence import keep
from tests.chaos.reader import Sighting, WatchingReader, sighting
from tests.chaos.store import DecisionStore, Plan
from tests.support.harness import Bridge, WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka

#: Longer than every session here, so that other workers take over and the stopped one comes back as a zombie.
STOPPED_S = 30.0
PARTITIONS = 4
_CLIENTS = 2
_SESSION_MS = 6_000
#: Every decided transaction has to be visible after this long without a fault.
_SETTLE_S = 180.0
#: Folder for the evidence of cells with violations.
EVIDENCE = Path("build/chaos/evidence")
#: Interval between progress lines, for a person who watches.
_PROGRESS_S = 30.0


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


# --- what is done -----------------------------------------------------------------------------------------------------


def _client_dies(how: signal.Signals) -> Callable[[Run], None]:
    def fault(run: Run) -> None:
        victim = run.clients[0]
        victim.process.send_signal(how)
        victim.process.wait(60)
        run.replace_client(victim)

    return fault


def _client_stops(run: Run) -> None:
    run.clients[0].process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    run.clients[0].process.send_signal(signal.SIGCONT)


def _worker_killed(run: Run) -> None:
    run.workers[0].kill()
    run.add_worker()


def _worker_ends(run: Run) -> None:
    run.workers[0].stop()
    run.add_worker()


def _worker_stops(run: Run) -> None:
    run.workers[0].pause()
    time.sleep(STOPPED_S)
    run.workers[0].resume()


def _kafka_killed(run: Run) -> None:
    run.kafka.kill()
    run.kafka.restart()


def _kafka_ends(run: Run) -> None:
    run.kafka.restart()


def _kafka_stops(run: Run) -> None:
    run.kafka.pause()
    time.sleep(STOPPED_S)
    run.kafka.resume()


def _rebalance_storm(run: Run) -> None:
    """Workers join and leave faster than the group can settle."""
    for number in range(8):
        extra = run.add_worker()
        time.sleep(1.5)
        extra.kill() if number % 2 else extra.stop()
        time.sleep(0.5)


#: Cells on one node of Kafka. Those on three brokers are in cluster_cells.py.
CELLS: dict[str, Callable[[Run], None]] = {
    "client kill -9": _client_dies(signal.SIGKILL),
    "client terminate": _client_dies(signal.SIGTERM),
    "client stop 30 s": _client_stops,
    "worker kill -9": _worker_killed,
    "worker terminate": _worker_ends,
    "worker stop 30 s": _worker_stops,
    "kafka kill -9": _kafka_killed,
    "kafka terminate": _kafka_ends,
    "kafka stop 30 s": _kafka_stops,
    "rebalance storm": _rebalance_storm,
}


# --- one cell ---------------------------------------------------------------------------------------------------------


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


def run_cell(
    cell: str,
    transactions: int,
    say: Callable[[str], None] = print,
    *,
    fault_of: Callable[[Run], None] | None = None,
    on: AbstractContextManager[EmbeddedKafka] | None = None,
    make: Callable[[EmbeddedKafka, Bridge, Path, int], Run] | None = None,
) -> CellReport:
    """Run a cell: traffic, a fault after a third of it, then quiet, then the verdict.

    Traffic goes on until the fault is over, even if that takes more transactions than requested. A cell that is not in
    CELLS brings its own fault, Kafka, or clients.
    """
    with ExitStack() as stack:
        kafka = stack.enter_context(on or EmbeddedKafka(heap="1g", jvm_profile="throughput"))
        bridge = stack.enter_context(Bridge(kafka.bootstrap_servers, f"chaos {cell}", partitions=PARTITIONS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txbridge-chaos-")))
        run = stack.enter_context(_closing((make or Run)(kafka, bridge, folder, transactions)))
        with WatchingReader(bridge.bootstrap_servers, run.topics, PARTITIONS) as reader:
            since = time.monotonic()
            eventually(lambda: run.decided >= transactions // 3, 300, "the traffic did not come up")
            say(f"{cell}: fault at {run.decided:,} transactions")
            progress = _Progress(run, transactions, say)
            fault = time.monotonic()
            (fault_of or CELLS[cell])(run)
            fault_s = time.monotonic() - fault
            (folder / FAULT_OVER).touch()
            say(f"{cell}: fault over after {fault_s:.0f} s")
            eventually(
                lambda: progress.told() and all((folder / f"{one.name}.done").exists() for one in run.clients),
                600,
                "the clients did not finish",
            )
            traffic_s = time.monotonic() - since
            pause = reader.longest_pause(fault)
            left = _settle(run, reader)
            settled_s = time.monotonic() - fault - fault_s
            watched = list(reader.sightings)
        final = _read_all(bridge, run)
        decisions, plans = run.store.decisions(), run.store.plans()
        told = list(run.told())
        found = [*violations(decisions, told, watched, final, plans), *left]
        found += refusals(event for worker in run.workers for event in worker.events("end_refused"))
        if found:
            say(f"{cell}: what it leaves behind is in {keep(cell, bridge, EVIDENCE, folder)}")
        return CellReport(
            cell=cell,
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


class _Progress:
    """Prints the progress of the traffic now and then."""

    def __init__(self, run: Run, transactions: int, say: Callable[[str], None]) -> None:
        self._run, self._transactions, self._say = run, transactions, say
        self._next = time.monotonic() + _PROGRESS_S

    def told(self) -> bool:
        """Print the progress if it is time for it. Always returns true."""
        if time.monotonic() >= self._next:
            self._next += _PROGRESS_S
            self._say(f"{self._run.decided:,} of {self._transactions:,} transactions")
        return True


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
        seen = Counter(one.transaction_id for one in list(reader.sightings))
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


def _read_all(bridge: Bridge, run: Run) -> list[Sighting]:
    return [sighting(message, 0.0) for topic in run.topics for message in bridge.read(topic)]


@contextmanager
def _closing(run: Run) -> Iterator[Run]:
    try:
        yield run
    finally:
        run.close()
