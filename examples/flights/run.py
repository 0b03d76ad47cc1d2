"""The demo: real flights through a real Kafka, with a worker killed on the way and an independent audit at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from txbridge_audit import AuditReport, run_audit
from txbridge_audit.audit import AuditEngine
from txbridge_audit.engines.spark.spark_session import kill_session
from txbridge_audit.errors import CouldNotAuditError

from flights.data import TOPIC, Expected, expected, read_flights
from flights.listener import FlightLog
from flights.processes import CountingReader, DemoWorker
from txbridge import AsyncTransactionProducer, Message
from txbridge.core.names import Names
from txbridge.embedded import EmbeddedKafka
from txbridge.errors import EnvironmentProblemError, TxBridgeError
from txbridge.interrupts import in_own_thread
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import apply

_PARTITIONS = 4
#: Sends in flight, as the requests of a service would be.
_TASKS = 500
#: Figures of docs/performance.md, in transactions of 100 B a second: this client, and RocketMQ with its best number of
#: threads.
BENCH_PER_SECOND, ROCKETMQ_PER_SECOND = 32_900, 10_800
#: Part of the flights after which a worker is killed.
_KILL_AT = 1 / 3
#: The demo fails after so long without a new message while some are missing. A take-over and a check take 10 to 15 s.
_STALLED_S = 120.0
#: Interval of the progress bars.
_SHOW_EVERY_S = 0.2
#: Limit of Kafka's own operations on topics.
_ADMIN_TIMEOUT_S = 30.0
#: Limit of one send.
_SEND_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The content of `build/demo/report.json`. Counts are the audit's unless their comment names another source."""

    transactions: int
    delivered: int
    #: The higher count of the audit's and the reader's.
    delivered_more_than_once: int
    rolled_back: int
    rolled_back_but_visible: int
    answered_by_check: int
    violations: int
    #: Rate from the first prepare until the read_committed reader had seen the last committed record.
    committed_per_second: int
    #: Process id of the worker that was killed with -9; None on a cluster with workers of its own.
    worker_killed: int | None
    #: Number of different transactions that the reader saw.
    seen_by_reader: int
    fates: dict[str, int]
    #: Counted from the data alone.
    expected: dict[str, int]
    clean: bool
    seconds: float


class DemoStalledError(TxBridgeError):
    """Transactions are missing, but nothing more was delivered."""


def run_demo(folder: Path, limit: int | None, console: Console, bootstrap_servers: str | None = None) -> DemoReport:
    """Run the whole demo. All output goes below `folder`, which is emptied first.

    Given `bootstrap_servers`, it uses that cluster with its topics and workers, which it leaves alone. Nobody else may
    have used txbridge there, or the counts are not the expected ones. Otherwise it starts its own cluster and workers,
    and kills a worker.

    Raises TxBridgeError when a part does not start or nothing more is delivered. A KeyboardInterrupt stops the
    processes.
    """
    with ExitStack() as stack:
        stack.callback(kill_session)
        return in_own_thread(lambda: _run(stack, folder, limit, console, bootstrap_servers))


def _run(
    stack: ExitStack, folder: Path, limit: int | None, console: Console, bootstrap_servers: str | None
) -> DemoReport:
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = expected(limit)
    workers: list[DemoWorker] = []
    if bootstrap_servers is None:
        servers = _start_kafka(stack, folder, console)
        workers += _start_workers(stack, servers, folder, console)
    else:
        servers = bootstrap_servers
        _make_real_topic(AdminClient({"bootstrap.servers": servers, "log_level": 0}))
        console.print(f"Kafka runs on {servers}, with workers of its own")
    reader = CountingReader(servers, TOPIC)
    reader.start()
    stack.callback(reader.stop)
    listener = FlightLog(folder / "flights.sqlite")
    stack.callback(listener.close)

    def replace_worker() -> None:
        """Kill the first worker with SIGKILL, and start a new one."""
        if not workers:
            return
        workers[0].kill()
        console.print(f"worker 1 (process {workers[0].pid}) was killed with -9; worker 3 joins")
        successor = DemoWorker(3, servers, folder)
        stack.callback(successor.stop)

    with _progress(console) as progress:
        seconds = asyncio.run(_run_flights(servers, listener, reader, replace_worker, progress, wanted, limit))
    reader.stop()
    audit = _audit(servers, console)
    copies = sum(1 for count in reader.copies.values() if count > 1)
    report = DemoReport(
        transactions=audit.transactions,
        delivered=audit.delivered,
        delivered_more_than_once=max(audit.delivered_more_than_once, copies),
        rolled_back=audit.rolled_back,
        rolled_back_but_visible=audit.rolled_back_but_visible,
        answered_by_check=audit.answered_by_check,
        violations=audit.violations.total,
        committed_per_second=round(wanted.delivered / seconds),
        worker_killed=workers[0].pid if workers else None,
        seen_by_reader=reader.delivered,
        fates=dict(audit.fates),
        expected=asdict(wanted),
        clean=audit.clean and copies == 0 and _matches(audit, reader, wanted),
        seconds=round(time.monotonic() - started, 1),
    )
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report


def _start_kafka(stack: ExitStack, folder: Path, console: Console) -> str:
    """Start a Kafka with its topics; return its address."""
    kafka = stack.enter_context(EmbeddedKafka(data_dir=folder / "kafka", heap="1g", jvm_profile="throughput"))
    servers = kafka.bootstrap_servers
    console.print(f"Kafka runs on {servers} (process {kafka.pid})")
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    apply(KafkaCluster(lambda: admin), Names(), PlanOptions(partitions=_PARTITIONS))
    _make_real_topic(admin)
    return servers


def _start_workers(stack: ExitStack, servers: str, folder: Path, console: Console) -> list[DemoWorker]:
    workers = [DemoWorker(1, servers, folder), DemoWorker(2, servers, folder)]
    for worker in workers:
        stack.callback(worker.stop)
    for worker in workers:
        worker.wait_assigned()
    console.print(f"two workers run (processes {workers[0].pid} and {workers[1].pid})")
    return workers


def _make_real_topic(admin: AdminClient) -> None:
    """Create the real topic. Raises EnvironmentProblemError when it cannot, above all because it exists already."""
    try:
        admin.create_topics([NewTopic(TOPIC, _PARTITIONS)])[TOPIC].result(_ADMIN_TIMEOUT_S)
    except KafkaException as failure:
        raise EnvironmentProblemError(f"the topic {TOPIC} cannot be created: {failure.args[0].str()}") from failure


async def _run_flights(
    servers: str,
    listener: FlightLog,
    reader: CountingReader,
    replace_worker: Callable[[], None],
    progress: Progress,
    wanted: Expected,
    limit: int | None,
) -> float:
    """Send every flight, kill a worker in between, and wait until all are delivered; return the seconds taken."""
    sending = progress.add_task("prepared and decided", total=wanted.transactions)
    delivered = progress.add_task("seen by a reader", total=wanted.delivered)
    started = time.monotonic()
    # No caller waits for a single flight, and a busy machine or a fresh Kafka may need the time.
    settings = {"bootstrap.servers": servers, "message.timeout.ms": _SEND_TIMEOUT_MS}
    async with AsyncTransactionProducer("flights", listener, settings) as producer:
        flights = read_flights(limit)
        done = 0

        async def send() -> None:
            nonlocal done
            for flight in flights:
                await producer.send_message_in_transaction(Message(TOPIC, flight.value, key=flight.key), flight)
                done += 1

        senders = asyncio.gather(*(send() for _ in range(_TASKS)))
        try:
            killed = False
            while not senders.done():
                await asyncio.wait([senders], timeout=_SHOW_EVERY_S)
                progress.update(sending, completed=done)
                progress.update(delivered, completed=reader.delivered)
                if not killed and done >= wanted.transactions * _KILL_AT:
                    await asyncio.to_thread(replace_worker)
                    killed = True
            await senders
        finally:
            senders.cancel()
        # The producer stays open, because it has checks to answer.
        while reader.delivered < wanted.delivered:
            progress.update(delivered, completed=reader.delivered)
            if time.monotonic() - reader.last_seen > _STALLED_S:
                missing = wanted.delivered - reader.delivered
                raise DemoStalledError(
                    f"{missing} committed flights did not arrive; see the workers' logs in the folder"
                )
            await asyncio.sleep(_SHOW_EVERY_S)
        progress.update(delivered, completed=reader.delivered)
        seconds = reader.last_seen - started
        # A reader does not see rollbacks, so wait until the last decision was surely sent.
        await producer.flush()
    return seconds


def _audit(servers: str, console: Console) -> AuditReport:
    with console.status("audit") as status:
        try:
            return run_audit(servers, engine=AuditEngine.SPARK, progress=lambda text: status.update(f"audit: {text}"))
        except CouldNotAuditError as error:
            # This error is of another package, which does not use our base class.
            raise EnvironmentProblemError(f"the demo ran, but could not be audited: {error}") from error


def _matches(audit: AuditReport, reader: CountingReader, wanted: Expected) -> bool:
    """Whether the counts of the audit and the reader are those of the data."""
    return (
        audit.transactions == wanted.transactions
        and audit.delivered == reader.delivered == wanted.delivered
        and audit.rolled_back == wanted.rolled_back
        and audit.answered_by_check == wanted.answered_by_check
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def print_summary(report: DemoReport, folder: Path, console: Console) -> None:
    """Print the table of results."""
    table = Table("what", "expected", "found", title="flights.departures, 2013")
    wanted = report.expected
    for what, expected_count, found in (
        ("transactions", wanted["transactions"], report.transactions),
        ("delivered exactly once (audit)", wanted["delivered"], report.delivered),
        ("seen by a read_committed reader", wanted["delivered"], report.seen_by_reader),
        ("delivered more than once", 0, report.delivered_more_than_once),
        ("rolled back", wanted["rolled_back"], report.rolled_back),
        ("rolled back but visible", 0, report.rolled_back_but_visible),
        ("answered by a check", wanted["answered_by_check"], report.answered_by_check),
        ("violations", 0, report.violations),
    ):
        style = "" if expected_count == found else "bold red"
        table.add_row(what, f"{expected_count:,}", f"{found:,}", style=style)
    console.print(table)
    killed = "" if report.worker_killed is None else ", with a worker killed on the way"
    console.print(
        f"{report.committed_per_second:,} committed transactions a second{killed}; "
        f"{report.seconds} s in all, the audit by PySpark included"
    )
    console.print(
        f"That is the asyncio client with {_TASKS:,} sends in flight, in one process that also parses the flights, "
        "writes SQLite, reads and counts what is delivered: a demonstration, and no bench. "
        f"`make bench ARGS=end_to_end` has measured {BENCH_PER_SECOND:,} a second for this client and "
        f"{ROCKETMQ_PER_SECOND:,} for RocketMQ at its best, on the machine of docs/performance.md.",
        highlight=False,
    )
    console.print(f"report: {folder / 'report.json'}")
    console.print("clean" if report.clean else "NOT clean", style="green" if report.clean else "bold red")
