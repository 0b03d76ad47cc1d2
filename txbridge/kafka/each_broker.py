"""Requests to each broker of a cluster alone, over one kept connection to each.

confluent-kafka serves the calls of one Consumer one after the other. librdkafka sends a request for metadata to any
broker, also to one that is frozen. Here a broker that does not answer delays only the questions to itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from confluent_kafka import KafkaError, KafkaException

from txbridge.kafka.aiokafka_client import aiokafka_runner
from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.config import BOOTSTRAP_SERVERS
from txbridge.kafka.denied import DENIED, named
from txbridge.kafka.failures import UnansweredError
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
        with aiokafka_runner() as runner:
            started.set_result(runner.get_loop())
            runner.get_loop().run_forever()

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
