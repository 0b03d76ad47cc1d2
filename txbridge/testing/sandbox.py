"""A namespace with topics, workers and producers for one test, with helpers for tests of transactional services."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import NewTopic

from txbridge import operations
from txbridge.client.listener import TransactionListener
from txbridge.client.producer import TransactionProducer
from txbridge.config.sources import load_settings
from txbridge.core.names import Names
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import UsageError
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.operations import Connection, OpenMessage, Selection
from txbridge.operations.reading import old_outcome, read_view
from txbridge.testing.backends import SERVING_TIMEOUT_S, Backend, RunningWorker, eventually
from txbridge.testing.fates import FATES, HasCoordinates
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import apply

#: Options of the workers. No check is due by itself during a test: `let_checks_be_due` is the test's clock. A killed
#: worker is noticed after 3 s, the least that is safe on a busy machine (the brokers of a backend allow it).
DEFAULT_OPTIONS = {"transaction_timeout": 3_600_000, "transaction_check_interval": 3_600_000, "session_timeout": 3_000}
#: Seconds that a helper waits by default. A decision is visible within 0.1 s, and a check is answered within 2 s. After
#: a kill both wait for a take-over as well. The rest is for busy machines.
DEFAULT_TIMEOUT_S = 30.0
#: Kafka's own operations on topics take milliseconds; deleting one goes on in the background, and is done in a second.
_ADMIN_TIMEOUT_S = 30.0
#: Added to a due time: clocks have whole milliseconds, and a worker's own may be some behind the brokers'.
_CLOCK_MARGIN_MS = 100

_PENDING = Selection(states=frozenset({TransactionState.PENDING}), limit=None)


class Sandbox:
    """The internal topics of a fresh namespace, with the workers and producers of a test; a context manager.

    Its end stops the workers and producers, and deletes all topics of the namespace and those of `create_topic`.

    Args:
        backend: runs Kafka; it must be started.
        partitions: of the internal topics. One keeps all decisions in order, and take-overs short.
        options: of all workers, by their names in docs/configuration.md; they win over DEFAULT_OPTIONS.

    """

    def __init__(self, backend: Backend, *, partitions: int = 1, options: dict[str, object] | None = None) -> None:
        self.backend = backend
        self.namespace = f"test-{secrets.token_hex(4)}"
        self.workers: list[RunningWorker] = []
        self._partitions = partitions
        self._options = {**DEFAULT_OPTIONS, **(options or {})}
        self._topics: dict[str, int] = {}
        self._stack = ExitStack()
        self._connection: Connection | None = None
        self._cluster = KafkaCluster.connect(self.settings)

    def __enter__(self) -> Self:
        options = PlanOptions(partitions=self._partitions, replication_factor=1)
        apply(self._cluster, Names(self.namespace), options)
        given = {name: str(value) for name, value in self._options.items()}
        flags = {**given, "bootstrap_servers": self.bootstrap_servers, "namespace": self.namespace}
        self._connection = Connection.open(load_settings(flags, environ={}))
        return self

    def __exit__(self, *_: object) -> None:
        # Producers first: they may still be sending decisions. Topics last: a worker would create its own again.
        with ExitStack() as after:
            # Also those that producers have added.
            after.callback(
                lambda: self._delete_topics([*self._topics, *self._cluster.topics_with_prefix(f"{self.namespace}.")])
            )
            for worker in self.workers:
                after.callback(worker.stop)
            self._stack.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers that this runs on."""
        return self.backend.bootstrap_servers

    @property
    def settings(self) -> dict[str, str]:
        """Settings for any client of confluent-kafka. A TransactionProducer needs `namespace`, too."""
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def aio(self) -> SandboxHelpers:
        """The helpers that wait, for tests that are coroutines: `await sandbox.aio.wait_fate(result)`."""
        return SandboxHelpers(self)

    @property
    def worker(self) -> RunningWorker:
        """The worker that was started last and runs. Raises UsageError if there is none."""
        for worker in reversed(self.workers):
            if worker.returncode is None:
                return worker
        raise UsageError("no worker runs in this sandbox; start_worker() starts one")

    def start_worker(self, timeout: float = SERVING_TIMEOUT_S, **options: object) -> RunningWorker:
        """Start a worker and wait until it serves all partitions. If others run, wait until it has joined the group.

        `timeout` in seconds. `options` are the worker's, by their names in docs/configuration.md, and win over those of
        the sandbox. Raises AssertionError, with the end of its log, if it does not serve in time.
        """
        alone = all(worker.returncode is not None for worker in self.workers)
        given = {**self._options, **options, "namespace": self.namespace}
        worker = self.backend.start_worker({name: str(value) for name, value in given.items()})
        self.workers.append(worker)
        if alone:
            worker.wait_serving(self._partitions, timeout)
        else:
            worker.wait_logged("partitions_assigned", timeout)
        return worker

    def kill_worker(self) -> None:
        """Send SIGKILL to the worker that was started last and runs. Start another one to go on."""
        self.worker.kill()

    def start_producer(self, listener: TransactionListener, group: str = "test", **options: Any) -> TransactionProducer:
        """A started producer, which the sandbox closes at its end; `options` are those of TransactionProducer."""
        producer = TransactionProducer(group, listener, self.settings, namespace=self.namespace, **options)
        return self._stack.enter_context(producer)

    def create_topic(self, topic: str, partitions: int = 1) -> str:
        """Create an empty real topic, which the sandbox deletes at its end, and return its name.

        A topic of this name from another test is deleted first.
        """
        deadline = Deadline(_ADMIN_TIMEOUT_S)
        while True:
            try:
                self._cluster.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_ADMIN_TIMEOUT_S)
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or deadline.is_over:
                    raise
                self._delete_topics([topic])
            else:
                break
        self._topics[topic] = partitions
        eventually(lambda: self._is_led(topic), _ADMIN_TIMEOUT_S, f"topic {topic} got no leader")
        return topic

    def _is_led(self, topic: str) -> bool:
        sight = self._cluster.read_topics([topic])[topic]
        return getattr(sight, "leaderless", 1) == 0

    def _delete_topics(self, topics: list[str]) -> None:
        for deleted in self._cluster.admin.delete_topics(topics).values():
            try:
                deleted.result(_ADMIN_TIMEOUT_S)
            except KafkaException as failure:
                # The test has deleted it itself.
                if failure.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def read_visible(self, topic: str) -> list[Message]:
        """All messages of a real topic that consumers with isolation.level=read_committed see now, by partition.

        The messages of a committed transaction are among them. Raises KafkaException if there is no such topic.
        """
        partitions = self._topics.get(topic) or len(self._cluster.admin.list_topics(topic).topics[topic].partitions)
        return read_committed(self.settings, topic, partitions)

    def wait_visible(self, topic: str, count: int = 1, timeout: float = DEFAULT_TIMEOUT_S) -> list[Message]:
        """Wait until at least `count` messages are visible, at most `timeout` seconds; returns all that are."""
        _refuse_on_loop("wait_visible")
        found: list[Message] = []

        def enough() -> bool:
            found[:] = self.read_visible(topic)
            return len(found) >= count

        eventually(enough, timeout, lambda: f"{len(found)} of {count} messages became visible in {topic}")
        return found

    def read_fate(self, transaction: HasCoordinates) -> TransactionState:
        """The current state of a transaction, named by the result of a send or by the MessageExt of a listener.

        It is read from the topics alone: pending when no worker has seen the transaction yet. Raises AssertionError
        when there is no half message, and the errors of `txbridge.operations.list_pending`.
        """
        connection = self._open_connection
        partition, offset = transaction.half_partition, transaction.half_offset
        view = read_view(connection, partition)
        found = view.find_open(offset) or view.outcome_of(offset) or old_outcome(connection, view, offset)
        assert found is not None, f"there is no half message at {partition}:{offset} in {connection.names.half}"
        return found.state

    def wait_fate(
        self,
        transaction: HasCoordinates,
        fates: Collection[TransactionState] = FATES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> TransactionState:
        """Wait until a transaction has one of these fates, at most `timeout` seconds, and return it.

        By default: committed (and visible), rolled back, discarded. HELD is a commit that its topic does not accept.
        """
        _refuse_on_loop("wait_fate")
        last: list[TransactionState] = []

        def has_one() -> bool:
            last[:] = [self.read_fate(transaction)]
            return last[0] in fates

        where = f"{transaction.half_partition}:{transaction.half_offset}"
        eventually(has_one, timeout, lambda: f"the transaction at {where} is still {last[0].value} after {timeout} s")
        return last[0]

    def list_pending(self) -> list[OpenMessage]:
        """All transactions that are undecided, oldest first, with the number of checks that were sent for each."""
        return list(operations.list_pending(self._open_connection, _PENDING).messages)

    def let_checks_be_due(self, timeout: float = DEFAULT_TIMEOUT_S) -> int:
        """Make the next check of every pending transaction due now, wait until all are sent, and return their number.

        A transaction that has had its last check is discarded instead. AssertionError after `timeout` seconds, as
        without a live process of the group. `wait_fate` waits for the answers. Held messages are tried again, too: for
        a moment the workers' clocks show the time at which the last check would be due.
        """
        _refuse_on_loop("let_checks_be_due")
        before = self._read_undecided()
        if not before:
            return 0
        last = max(message.next_due or 0 for message in before.values())
        ahead = max(0, last - time.time_ns() // 1_000_000) + _CLOCK_MARGIN_MS

        def waiting() -> list[str]:
            now = self._read_undecided()
            return [where for where, message in before.items() if where in now and now[where].checks == message.checks]

        self._shift_clocks(ahead)
        try:
            eventually(
                lambda: not waiting(),
                timeout,
                lambda: (
                    f"no check was sent in {timeout} s for {', '.join(waiting())}: is a producer of the group alive, "
                    f"and a worker? Its log:\n{self.worker.log[-2_000:]}"
                ),
            )
        finally:
            self._shift_clocks(0)
        return len(before)

    def _read_undecided(self) -> dict[str, OpenMessage]:
        listing = operations.list_pending(self._open_connection, _PENDING, errors=False)
        return {message.coordinates: message for message in listing.messages}

    def _shift_clocks(self, milliseconds: int) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.shift_clock(milliseconds)

    @property
    def _open_connection(self) -> Connection:
        assert self._connection is not None, "use the sandbox as a context manager"
        return self._connection


class SandboxHelpers:
    """Helpers of a Sandbox that a coroutine awaits. They wait in a thread."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def wait_visible(self, topic: str, count: int = 1, timeout: float = DEFAULT_TIMEOUT_S) -> list[Message]:  # noqa: ASYNC109
        """See Sandbox.wait_visible."""
        return await asyncio.to_thread(self._sandbox.wait_visible, topic, count, timeout)

    async def wait_fate(
        self,
        transaction: HasCoordinates,
        fates: Collection[TransactionState] = FATES,
        timeout: float = DEFAULT_TIMEOUT_S,  # noqa: ASYNC109
    ) -> TransactionState:
        """See Sandbox.wait_fate."""
        return await asyncio.to_thread(self._sandbox.wait_fate, transaction, fates, timeout)

    async def let_checks_be_due(self, timeout: float = DEFAULT_TIMEOUT_S) -> int:  # noqa: ASYNC109
        """See Sandbox.let_checks_be_due."""
        return await asyncio.to_thread(self._sandbox.let_checks_be_due, timeout)


def _refuse_on_loop(name: str) -> None:
    """Raise UsageError on a running event loop: a producer there could not go on while the helper waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{name}() would block the event loop: await sandbox.aio.{name}()")


def read_committed(kafka: Mapping[str, Any], topic: str, partitions: int) -> list[Message]:
    """All messages of a topic that a consumer with isolation.level=read_committed sees, partition by partition.

    Messages that were written before this call are seen: it waits for Kafka transactions that are being ended. Raises
    HangingTransactionError when one stays open for 30 s, KafkaException.
    """
    found: list[Message] = []
    for partition in range(partitions):
        with closing(PartitionReader(kafka, topic, partition, committed=False)) as raw:
            start, end = raw.watermarks()
        with closing(PartitionReader(kafka, topic, partition, committed=True)) as reader:
            reader.start(start)
            found += reader.read_below(end, lambda: False)
    return found
