"""Requests to each broker of a cluster alone, over one kept connection to each, through aiokafka.

confluent-kafka serves the calls of one Consumer one after the other. librdkafka sends a request for metadata to any
broker, also to one that is frozen, and does not tell which requests a broker supports. Here a broker that does not
answer delays only the questions to itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from confluent_kafka import KafkaError, KafkaException

from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.config import BOOTSTRAP_SERVERS
from txbridge.kafka.errors import DENIED, UnansweredError, named
from txbridge.kafka.proven_end import View
from txbridge.kafka.token_provider import NoTokenError
from txbridge.log import get_logger

#: Longest wait for an answer (s). A healthy broker answers in milliseconds, over a connection that takes up to a second
#: with TLS. A later answer is not believed: a broker that was suspended and resumes first answers the requests that
#: waited, as if it still led the partition. It loses its leadership after broker.session.timeout.ms (9 s by default).
_ANSWER_S = 2.0
#: ListOffsets: the replica id of a client. Records of open Kafka transactions count: acknowledged ones are in the log.
_NO_REPLICA, _READ_UNCOMMITTED = -1, 0

_Address = tuple[str, int]
_log = get_logger("txbridge.worker")

#: The oldest and the newest version of each request that a broker supports, by API key.
Versions = Mapping[int, tuple[int, int]]


class KeptConnections:
    """One connection to each broker, for all partitions of a process. Thread-safe; `kafka`: librdkafka's properties.

    They live in the event loop of a thread of their own.
    """

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        servers = (server.rsplit(":", 1) for server in kafka[BOOTSTRAP_SERVERS].split(","))
        self._servers: list[_Address] = [(host.strip("[]"), int(port)) for host, port in servers]
        self._auth = aiokafka_auth(kafka)
        # As of the last answers.
        self._addresses: dict[int, _Address] = {}
        self._replicas: dict[tuple[str, int], frozenset[int]] = {}
        # Only the loop's thread uses them.
        self._connections: dict[_Address, asyncio.Task[AIOKafkaConnection]] = {}
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="txbridge-brokers", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = _RequestLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            started.set_result(runner.get_loop())
            loop.run_forever()
            runner.run(loop.abort_connections())

    def close(self) -> None:
        """Close the connections. Nothing may be asked any more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def views_of(self, topic: str, partition: int) -> Iterator[tuple[int, View]]:
        """The answers of the brokers that hold the partition, as they come.

        Raises KafkaException without the right, UnansweredError without a token.
        """
        place = (topic, partition)
        if place not in self._replicas:
            next(self._ask_views(dict.fromkeys(self._servers, -1), place), None)
        nodes = {self._addresses[node]: node for node in self._replicas.get(place, ()) if node in self._addresses}
        found = None
        for found in self._ask_views(nodes, place):
            yield found
        if found is None:
            # The next question begins with any broker.
            self._replicas.pop(place, None)

    def _ask_views(self, nodes: Mapping[_Address, int], place: tuple[str, int]) -> Iterator[tuple[int, View]]:
        topic, partition = place
        request = MetadataRequest([topic], allow_auto_topic_creation=False)
        questions = {self._send_to(address, request): node for address, node in nodes.items()}
        for question in as_completed(questions):
            if (answer := question.result()) is None:
                continue
            alive = {node: (host, port) for node, host, port, *_ in answer.brokers}
            self._addresses.update(alive)
            for code, _, _, partitions in answer.topics:
                _require_right(code, topic)
                for _, number, leader, replicas, *_ in partitions:
                    if number == partition:
                        self._replicas[place] = frozenset(replicas)
                        yield questions[question], View(leader, frozenset(replicas), frozenset(alive))

    def offsets_of(self, node: int, topic: str, partitions: Iterable[int], at: int) -> Mapping[int, int] | None:
        """Log starts or ends by partition, of those that this broker leads. Raises as `views_of`."""
        address = self._addresses.get(node)
        request = OffsetRequest(_NO_REPLICA, _READ_UNCOMMITTED, [(topic, [(one, at) for one in partitions])])
        answer = None if address is None else self._send_to(address, request).result()
        if answer is None:
            return None
        found = {}
        for _, of in answer.topics:
            for number, code, _, offset, *_ in of:
                _require_right(code, topic)
                if code == 0:
                    found[number] = offset
        return found

    def versions_of(self, brokers: Mapping[int, _Address]) -> dict[int, Mapping[int, tuple[int, int]]]:
        """Each broker's oldest and newest version of each request, by API key. One that does not answer is left out."""
        questions = {node: self._send_to(address, ApiVersionRequest()) for node, address in brokers.items()}
        return {
            node: {key: (least, most) for key, least, most in answer.api_versions}
            for node, question in questions.items()
            if (answer := question.result()) is not None
        }

    def _send_to(self, address: _Address, request: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._answer_of(address, request), self._loop)

    async def _answer_of(self, address: _Address, request: Any) -> Any:
        """The answer of this broker; None if it does not come in time. Raises UnansweredError without a token."""
        connection = self._connection_to(address)
        try:
            if not connection.done():
                await asyncio.wait_for(asyncio.shield(connection), _ANSWER_S)
            return await connection.result().send(request)
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            _log.debug("broker_not_answering", error=str(error) or type(error).__name__)
            # The next question has a new connection. Others that wait for this one may still get their answers.
            if self._connections.get(address) is connection and connection.done():
                del self._connections[address]
                if connection.exception() is None:
                    connection.result().close()
            if isinstance(error, NoTokenError):
                # No broker can be asked.
                raise UnansweredError(str(error)) from None
            return None

    def _connection_to(self, address: _Address) -> asyncio.Task[AIOKafkaConnection]:
        known = self._connections.get(address)
        if known is None or (known.done() and (known.exception() or not known.result().connected())):
            limit, name = round(_ANSWER_S * 1000), "txbridge-each-broker"
            opening = create_conn(*address, client_id=name, request_timeout_ms=limit, **self._auth)
            known = self._connections[address] = asyncio.get_running_loop().create_task(opening)
            # It is looked at even if nobody waits for it any more: asyncio would log the error otherwise.
            known.add_done_callback(lambda task: task.cancelled() or task.exception())
        return known


def _require_right(code: int, topic: str) -> None:
    if code in DENIED:
        raise KafkaException(named(KafkaError(code), "READ", f"topic {topic}"))


class _RequestLoop(asyncio.SelectorEventLoop):
    """An event loop that knows the connections which are open in it, also when their opening was cancelled.

    aiokafka's own `close` waits for up to 30 s until a broker has answered the end of TLS. Here nothing is lost: each
    request has its answer, or nobody waits for it any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[Any, asyncio.Transport] = {}

    async def create_connection(self, protocol_factory: Callable[[], Any], *arguments: Any, **keywords: Any) -> Any:
        def make_protocol() -> Any:
            protocol = protocol_factory()
            on_connection, on_end = protocol.connection_made, protocol.connection_lost

            def connection_made(transport: asyncio.Transport) -> None:
                self._opened[protocol] = transport
                on_connection(transport)

            def connection_lost(error: Exception | None) -> None:
                self._opened.pop(protocol, None)
                on_end(error)

            # Noting what `create_connection` returns is not enough. A caller that is cancelled right after the TLS
            # handshake gets no transport, and asyncio then waits for the broker to close its side.
            protocol.connection_made, protocol.connection_lost = connection_made, connection_lost
            return protocol

        return await super().create_connection(make_protocol, *arguments, **keywords)

    async def abort_connections(self) -> None:
        # Tasks end first, because they may still open connections.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for transport in list(self._opened.values()):
            transport.abort()
        # One turn ends the connections, the next one tells their readers.
        for _ in range(2):
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Need:
    """A request, and the lowest version of it that txbridge can use."""

    #: Kafka's API key.
    key: int
    name: str
    version: int
    #: The release of Kafka that brought it.
    since: str
    why: str


NEEDS = (
    Need(0, "Produce", 3, "0.11", "records with headers"),
    Need(1, "Fetch", 4, "0.11", "readers of committed records"),
    Need(22, "InitProducerId", 0, "0.11", "the fence of a partition"),
    Need(24, "AddPartitionsToTxn", 0, "0.11", "Kafka transactions"),
    Need(26, "EndTxn", 0, "0.11", "Kafka transactions"),
    Need(23, "OffsetForLeaderEpoch", 2, "2.0", "readers that notice a lost tail"),
    Need(3, "Metadata", 10, "2.8", "ids of topics: one that was recreated is noticed"),
    Need(65, "DescribeTransactions", 0, "3.0", "kafka-transactions.sh, which ends a hanging one"),
)


def lacking(versions: Versions) -> str:
    """The requests that a broker lacks, with the versions that it has; empty when it lacks none."""
    found = {key: f"{oldest} to {newest}" for key, (oldest, newest) in versions.items()}
    return ", ".join(
        f"{need.name} {need.version} of Kafka {need.since} ({need.why}; found {found.get(need.key, 'none')})"
        for need in NEEDS
        if need.key not in versions or versions[need.key][1] < need.version
    )


def require_features(brokers: Mapping[int, Versions]) -> None:
    """Raise EnvironmentProblemError if a broker lacks a request; the text names each broker and request."""
    found = [f"broker {node} lacks {what}" for node, known in sorted(brokers.items()) if (what := lacking(known))]
    if found:
        raise EnvironmentProblemError(
            "a worker cannot work with these brokers:\n- "
            + "\n- ".join(found)
            + "\nWhat to do: use brokers of Apache Kafka 3.9 or later, or a service that speaks all of its transactions"
        )
