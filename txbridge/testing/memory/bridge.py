"""MemoryBridge: Kafka and a worker for one test, in memory, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, NoReturn, Self, cast

from confluent_kafka import Message

from txbridge.client.checks.calls import CheckCalls, CheckRequest, parse_check
from txbridge.client.flow.lifetime import BRIDGES
from txbridge.client.listener import TransactionListener
from txbridge.client.options import ClientOptions
from txbridge.client.producer import TransactionProducer
from txbridge.client.runtime import Runtime
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.names import Names
from txbridge.core.states import TransactionState
from txbridge.errors import KafkaUnreachableError, UsageError
from txbridge.testing.fates import FATES, HasCoordinates
from txbridge.testing.memory.broker import HALF_PARTITIONS, PARTITION, CrashPoint, MemoryBroker
from txbridge.testing.memory.client import MemoryClient, deliver_row

_numbers = itertools.count(1)
#: A client, and a check that it has to answer.
_Check = tuple[MemoryClient, CheckRequest]


class MemoryBridge:
    """Kafka and a worker in memory: the worker's state machine on real records, and nothing else of either.

    Your TransactionProducers and AsyncTransactionProducers, unchanged, get `settings`. Everything happens within the
    calls of the test: a decision is applied when the send returns, and time stands still until `advance` or
    `let_checks_be_due` moves it. The producers that are open answer the checks. The methods that Sandbox has, too, do
    the same there, so a test with these alone runs on both.

    A check that raises is answered with unknown, and the call that has led to it raises the exception at its end.

    Args:
        policy: Times of checks and discards, by default those of a worker.

    """

    #: Producers of any namespace may use the bridge.
    namespace = ""

    def __init__(self, policy: CheckPolicy | None = None) -> None:
        #: What stands for the addresses of brokers, also in an environment variable of the service.
        self.bootstrap_servers = f"memory-{next(_numbers)}.txbridge.invalid:9092"
        self._broker = MemoryBroker(policy or CheckPolicy())
        #: The clients of all producers that were started and are not closed.
        self._clients: list[MemoryClient] = []
        self._outboxes: list[Callable[[], Iterable[Mapping[Any, Any]]]] = []
        self._stack = ExitStack()
        BRIDGES[self.bootstrap_servers] = self._open_client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        BRIDGES[self.bootstrap_servers] = _refuse_client

    @property
    def settings(self) -> dict[str, str]:
        """Settings for producers."""
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def now(self) -> int:
        """The time on this Kafka, in ms since 1970-01-01 UTC."""
        return self._broker.now

    @property
    def aio(self) -> MemoryHelpers:
        """The methods that may call listeners, for tests that are coroutines: `await bridge.aio.advance(20)`."""
        return MemoryHelpers(self)

    def start_producer(self, listener: TransactionListener, group: str = "test", **options: Any) -> TransactionProducer:
        """Start a producer, which the end of the bridge closes. `options` are those of TransactionProducer."""
        return self._stack.enter_context(TransactionProducer(group, listener, self.settings, **options))

    def create_topic(self, topic: str, partitions: int = 1) -> str:
        """Create a real topic, and return its name. Every other one exists, too, with any number of partitions."""
        self._broker.topics.partitions[topic] = partitions
        return topic

    def read_visible(self, topic: str) -> list[Message]:
        """All messages of a real topic that consumers see now: as they get them, by partition.

        A message is in the partition that it names, otherwise in 0.
        """
        self._relay_rows()
        return self._broker.read_topic(topic)

    #: The same, by the name that reads well in an assertion.
    delivered = read_visible

    def assert_announced(
        self, topic: str, value: object = None, *, key: str | None = None, count: int = 1
    ) -> list[Message]:
        """Return the visible messages of a topic that have this value and key (None: any), which must be `count`.

        Text and bytes are compared as they are, any other value as JSON. The AssertionError shows all that was
        announced.
        """
        given = value.encode() if isinstance(value, str) else value
        found = [
            one
            for one in self.read_visible(topic)
            if (key is None or one.key() == key.encode())
            and (given is None or given == (one.value() if isinstance(given, bytes) else _json_of(one)))
        ]
        wanted = "".join(f" {name}={one!r}" for name, one in (("key", key), ("value", value)) if one is not None)
        shown = self._broker.describe()
        assert len(found) == count, f"{topic}{wanted}: {len(found)} and not {count}. Announced:\n{shown}"
        return found

    def relay(self, take_rows: Callable[[], Iterable[Mapping[Any, Any]]]) -> None:
        """From now on do as a relay: each look and each move of the clock delivers the rows that this call takes.

        It is `Outbox.take_rows` with an engine of the test, or `txbridge_django.outbox.take_rows`.
        """
        self._outboxes.append(take_rows)

    def _relay_rows(self) -> None:
        if self._broker.is_running:
            for take_rows in self._outboxes:
                for row in take_rows():
                    deliver_row(self._broker, row)

    def read_discarded(self) -> list[Message]:
        """All records of the discard topic (TRANS_CHECK_MAX_TIME_TOPIC)."""
        return self.read_visible(Names().discard)

    def wait_visible(self, topic: str, count: int = 1, timeout: float = 0.0) -> list[Message]:  # noqa: ARG002
        """Return all visible messages of a topic. AssertionError if these are fewer than `count`: no time-out helps."""
        found = self.read_visible(topic)
        assert len(found) >= count, f"{len(found)} of {count} messages became visible in {topic}"
        return found

    def read_fate(self, transaction: HasCoordinates) -> TransactionState:
        """The current state of a transaction, named by the result of a send or by the MessageExt of a listener."""
        partition, offset = transaction.half_partition, transaction.half_offset
        state = self._broker.state_of(offset) if partition == PARTITION else None
        assert state is not None, f"there is no half message at {partition}:{offset}"
        return state

    def wait_fate(
        self,
        transaction: HasCoordinates,
        fates: Collection[TransactionState] = FATES,
        timeout: float = 0.0,  # noqa: ARG002
    ) -> TransactionState:
        """Return the state of a transaction. AssertionError if it is none of these: no time-out helps."""
        fate = self.read_fate(transaction)
        where = f"{transaction.half_partition}:{transaction.half_offset}"
        assert fate in fates, f"the transaction at {where} is still {fate.value}"
        return fate

    def list_pending(self) -> list[HalfEntry]:
        """All transactions that are undecided, oldest first, with the number of `checks` that were sent for each."""
        return self._broker.list_pending()

    def advance(self, seconds: float) -> None:
        """Let this time pass. Whatever becomes due happens at its time: deliveries, checks, discards.

        Raises what a check method raises, and UsageError on the event loop of an AsyncTransactionProducer.
        """
        self._refuse_on_loop("advance")
        _answer_checks(self.each_check_within(seconds))

    def let_checks_be_due(self, timeout: float = 0.0) -> int:  # noqa: ARG002
        """Move the clock to where the next check of every pending transaction is due, and return their number.

        A transaction that has had its last check is discarded instead. AssertionError if no producer of its group is
        open. Raises as `advance`.
        """
        self._refuse_on_loop("let_checks_be_due")
        number = len(self.list_pending())
        _answer_checks(self.each_next_check())
        return number

    def each_check_within(self, seconds: float) -> Iterator[_Check]:
        """Let this time pass, and yield each check when it is sent. It must be answered before the next."""
        until = self.now + math.ceil(seconds * 1000)
        self._relay_rows()
        yield from self._run_turns()
        while self.now < until:
            self._broker.move_clock(until)
            yield from self._run_turns()

    def each_next_check(self) -> Iterator[_Check]:
        """Do as `let_checks_be_due`, and yield each check."""
        pending = self.list_pending()
        before = {entry.offset: entry.checks for entry in pending}
        self._broker.now = max([self.now, *(entry.next_due for entry in pending)])
        yield from self._run_turns()
        unasked = {entry.group for entry in self.list_pending() if before.get(entry.offset) == entry.checks}
        assert not unasked, (
            f"no check was sent to the group {', '.join(sorted(unasked))}: no producer of it is open, or Kafka is away"
        )

    def _run_turns(self) -> Iterator[_Check]:
        if not self._broker.is_running:
            return
        for record in self._broker.run_turns(lambda group: any(one.group == group for one in self._live_clients())):
            asked = next((one for one in self._live_clients() if Names().check(one.group) == record.topic()), None)
            # None: the listener has closed its producer, or has stopped Kafka, at an earlier check.
            if asked is not None:
                yield asked, parse_check(record, asked.group, Names(), HALF_PARTITIONS)

    def _live_clients(self) -> list[MemoryClient]:
        return [client for client in self._clients if client.is_connected]

    def _refuse_on_loop(self, name: str) -> None:
        """Raise UsageError where waiting for a check would block the event loop that has to answer it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if any(client.loop is loop for client in self._clients):
            raise UsageError(f"{name}() would block the event loop that answers checks: await bridge.aio.{name}()")

    def lose_decision(self) -> None:
        """Let the next END be lost, of a send or of a check: Kafka does not get it. The result has the error."""
        self._broker.is_to_lose = True

    def crash_at(self, point: CrashPoint) -> None:
        """Let the process of the producer that reaches this point next die there.

        The send raises ClientCrashError, and so does each later one. Nobody asks this producer any more: checks wait
        for another one of the group.
        """
        self._broker.crash_point = point

    def stop(self) -> None:
        """Let Kafka be away: half messages fail with PrepareError, or are stored if the listener has an outbox."""
        self._broker.is_running = False

    def start(self) -> None:
        """Let Kafka answer again. What has become due meanwhile happens with the next `advance`, 0 s suffice."""
        self._broker.is_running = True

    def _open_client(self, options: ClientOptions, checks: CheckCalls) -> Runtime:
        if not (self._broker.is_running or options.starts_in_background):
            raise KafkaUnreachableError("Kafka is away (MemoryBridge.stop)")
        self._clients.append(MemoryClient(self._broker, options, checks, self._clients.remove))
        return cast(Runtime, self._clients[-1])


class MemoryHelpers:
    """Methods of a MemoryBridge that a coroutine awaits. Those that SandboxHelpers has do the same there."""

    def __init__(self, bridge: MemoryBridge) -> None:
        self._bridge = bridge

    async def advance(self, seconds: float) -> None:
        """See MemoryBridge.advance."""
        await _answer_checks_on_loop(self._bridge.each_check_within(seconds))

    async def let_checks_be_due(self, timeout: float = 0.0) -> int:  # noqa: ARG002, ASYNC109
        """See MemoryBridge.let_checks_be_due."""
        number = len(self._bridge.list_pending())
        await _answer_checks_on_loop(self._bridge.each_next_check())
        return number

    async def wait_visible(self, topic: str, count: int = 1, timeout: float = 0.0) -> list[Message]:  # noqa: ARG002, ASYNC109
        """See MemoryBridge.wait_visible."""
        return self._bridge.wait_visible(topic, count)

    async def wait_fate(
        self,
        transaction: HasCoordinates,
        fates: Collection[TransactionState] = FATES,
        timeout: float = 0.0,  # noqa: ARG002, ASYNC109
    ) -> TransactionState:
        """See MemoryBridge.wait_fate."""
        return self._bridge.wait_fate(transaction, fates)


def _json_of(message: Message) -> object:
    with suppress(TypeError, ValueError):
        return json.loads(message.value() or b"")
    return None


def _answer_checks(checks: Iterator[_Check]) -> None:
    errors: list[Exception] = []
    for client, request in checks:
        errors += client.answer_check(request, client.start_check(request).result())
    _raise_all(errors)


async def _answer_checks_on_loop(checks: Iterator[_Check]) -> None:
    errors: list[Exception] = []
    for client, request in checks:
        errors += client.answer_check(request, await asyncio.wrap_future(client.start_check(request)))
    _raise_all(errors)


def _raise_all(errors: list[Exception]) -> None:
    """Raise what check methods have raised."""
    if len(errors) > 1:
        raise ExceptionGroup("check_local_transaction has raised", errors)
    for error in errors:
        raise error


def _refuse_client(_options: ClientOptions, _checks: CheckCalls) -> NoReturn:
    raise UsageError("the MemoryBridge of these settings has ended: give the producer those of another")
